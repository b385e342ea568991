"""Tests scores of windows: products with keys of unit length, and the pairs that are masked."""

import jax
import jax.numpy as jnp

from efficient_attention.attention.lsh.chunk_loops import loop_over_windows
from efficient_attention.attention.lsh.scores import window_logits
from efficient_attention.attention.lsh.windows import (
    ChunkWindow,
    LSHMaskInputs,
    make_row_vectors,
    window_vectors,
)
from tests.attention.lsh.test_windows import H, make


def test_scores_are_products_with_unit_keys():
    layout, rounds, q, v = make(causal=True)
    vectors = make_row_vectors(q, v)

    def step(window: ChunkWindow, difference: jax.Array) -> jax.Array:
        logits, is_self = window_logits(window_vectors(vectors, window, layout), window, layout)
        query, key = window.queries.places[..., :, None], window.keys.places[..., None, :]
        head = jnp.arange(H)[None, :, None, None, None, None]
        unit = q[0] / jnp.linalg.norm(q[0], axis=-1, keepdims=True)
        expected = (q[0][head, query] * unit[head, key]).sum(-1)
        is_read = (key < query) & ~is_self
        assert logits.dtype == jnp.float32
        return jnp.maximum(difference, jnp.where(is_read, abs(logits - expected), 0.0).max())

    assert loop_over_windows(step, layout, rounds, LSHMaskInputs(None, None, None, None), jnp.asarray(0.0)) < 1e-5
