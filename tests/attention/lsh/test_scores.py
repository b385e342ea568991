"""Scores of windows: products with unit keys, and which pairs are left out."""

import jax
import jax.numpy as jnp

from efficient_attention.attention.attend import make_request
from efficient_attention.attention.lsh.definition import LSH, make_layout
from efficient_attention.attention.lsh.rounds import Layout, Rounds, make_rounds
from efficient_attention.attention.lsh.scores import scores
from efficient_attention.attention.lsh.steps import run_steps
from efficient_attention.attention.lsh.windows import (
    ChunkWindow,
    LSHMaskInputs,
    make_row_vectors,
    window_vectors,
)

L, H, K, S = 24, 2, 8, 4


def make(causal: bool = False) -> tuple[Layout, Rounds, jax.Array, jax.Array]:
    """Layout, rounds, q and v [B, H, L, K] of a row of 24 positions in chunks of 4."""
    q, v = (jax.random.normal(jax.random.key(seed), (1, L, H, K)) for seed in (0, 1))
    request = make_request(q, q, v, LSH(bucket_size=S, rounds=2, causal=causal), rng=jax.random.key(2))
    layout = make_layout(request)
    return layout, make_rounds(request, layout)[0], q.swapaxes(1, 2), v.swapaxes(1, 2)


def test_scores_are_products_with_unit_keys():
    layout, rounds, q, v = make(causal=True)
    vectors = make_row_vectors(q, v)

    def step(window: ChunkWindow, difference: jax.Array) -> jax.Array:
        logits, is_self = scores(window_vectors(vectors, window, layout), window, layout)
        query, key = window.queries.places[..., :, None], window.keys.places[..., None, :]
        head = jnp.arange(H)[None, :, None, None, None, None]
        unit = q[0] / jnp.linalg.norm(q[0], axis=-1, keepdims=True)
        expected = (q[0][head, query] * unit[head, key]).sum(-1)
        is_read = (key < query) & ~is_self
        assert logits.dtype == jnp.float32
        return jnp.maximum(difference, jnp.where(is_read, abs(logits - expected), 0.0).max())

    assert run_steps(step, layout, rounds, LSHMaskInputs(None, None, None, None), jnp.asarray(0.0)) < 1e-5
