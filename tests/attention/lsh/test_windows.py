"""Tests windows of sorted chunks: a step reads each chunk's own slots and the slots of the chunk before it."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.lsh.chunk_loops import loop_over_windows
from efficient_attention.attention.lsh.definition import LSH, layout_from_request
from efficient_attention.attention.lsh.scores import window_logits
from efficient_attention.attention.lsh.sorted_rounds import HashRounds, LSHLayout, make_rounds
from efficient_attention.attention.lsh.windows import (
    ChunkWindow,
    LSHMaskInputs,
    make_row_vectors,
    window_vectors,
)
from tests.attention.requests import make_request

L, H, K, S = 24, 2, 8, 4


def make(causal: bool = False) -> tuple[LSHLayout, HashRounds, jax.Array, jax.Array]:
    """Returns layout, rounds, q and v [B, H, L, K] of a row of 24 positions in chunks of 4."""
    q, v = (jax.random.normal(jax.random.key(seed), (1, L, H, K)) for seed in (0, 1))
    request = make_request(q, q, v, LSH(bucket_size=S, rounds=2, causal=causal), rng=jax.random.key(2))
    layout = layout_from_request(request)
    return layout, make_rounds(request, layout)[0], q.swapaxes(1, 2), v.swapaxes(1, 2)


def test_each_pair_of_a_chunk_and_the_one_before_is_scored_once_in_each_round():
    """Counts for each pair of positions how often the windows of a whole loop contain it."""
    layout, rounds, q, v = make()
    vectors = make_row_vectors(q, v)

    def step(window: ChunkWindow, seen: jax.Array) -> jax.Array:
        logits, is_self = window_logits(window_vectors(vectors, window, layout), window, layout)
        places = jnp.broadcast_arrays(window.queries.places[..., :, None], window.keys.places[..., None, :])
        head = jnp.broadcast_to(jnp.arange(H)[None, :, None, None, None, None], places[0].shape)
        assert logits.shape == is_self.shape == places[0].shape
        return seen.at[head, places[0], places[1]].add(1)

    seen = np.asarray(
        loop_over_windows(step, layout, rounds, LSHMaskInputs(None, None, None, None), jnp.zeros((H, L, L), int))
    )
    chunks = np.asarray(rounds.slots_BHTL)[0] // S  # The array is [H, T, L].
    back = (chunks[:, :, :, None] - chunks[:, :, None, :]) % layout.chunk_count
    np.testing.assert_array_equal(seen, (back <= layout.previous_chunks).sum(1))
