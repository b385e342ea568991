"""Tests gradients of sorted slots: the gradient of a read chunk goes back to the chunk that it came from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.lsh.definition import LSH, layout_for_length
from efficient_attention.attention.lsh.gradients import add_to_source_chunks, sum_by_position
from efficient_attention.attention.lsh.sorted_rounds import HashRounds, sort_round
from efficient_attention.attention.lsh.windows import cut_into_chunks, with_previous_chunk

L, H, K, S, T = 22, 2, 8, 4, 2
LAYOUT = layout_for_length(LSH(bucket_size=S, rounds=T), L)


@pytest.fixture(scope='module')
def rounds() -> HashRounds:
    buckets_BHTL = np.random.default_rng(0).integers(0, 6, (1, H, T, L), np.int32)
    return jax.jit(lambda buckets: sort_round(jnp.arange(T, dtype=jnp.int32), buckets, None, LAYOUT))(buckets_BHTL)


def test_what_is_taken_apart_adds_up_where_it_came_from(rounds: HashRounds):
    """`add_to_source_chunks` is the transpose of `with_previous_chunk`."""
    chunks = jax.random.normal(jax.random.key(3), cut_into_chunks(rounds, LAYOUT).order_BHTcS.shape + (3,))
    put_together, pull = jax.vjp(lambda x: with_previous_chunk(x, LAYOUT), chunks)
    cotangent = jax.random.normal(jax.random.key(4), put_together.shape)
    np.testing.assert_allclose(add_to_source_chunks(cotangent, LAYOUT), pull(cotangent)[0], rtol=1e-6)


def test_slots_are_summed_by_position_and_the_chunk_in_front_counts_as_the_last(rounds: HashRounds):
    chunked = cut_into_chunks(rounds, LAYOUT)
    slots = np.random.default_rng(0).standard_normal((*chunked.order_BHTcS.shape, 1)).astype(np.float32)
    is_filling = (np.arange(LAYOUT.chunk_count * S) >= L).reshape(LAYOUT.chunk_count, S)
    slots *= ~np.concatenate([is_filling[-1:], is_filling])[:, :, None]
    expected = np.zeros((1, H, L, 1), np.float32)
    for head, number in np.ndindex(H, T):
        places = np.asarray(chunked.order_BHTcS[0, head, number])
        np.add.at(expected[0, head], places.ravel(), slots[0, head, number].reshape(-1, 1))
    found = sum_by_position(jnp.asarray(slots), LAYOUT, rounds, LAYOUT.previous_chunks)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
