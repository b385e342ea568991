"""Tests hash rounds: the order of a row's positions, and which neighbours in this order may read each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.lsh.definition import LSH, layout_for_length
from efficient_attention.attention.lsh.sorted_rounds import NO_RUN, sort_round

# The program runs once: compiling it with all optimisations takes three times as long.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


@pytest.mark.parametrize(
    'length, size, chunks, before', [(40, 16, 3, 1), (16, 16, 1, 0), (10, 10, 1, 0), (17, 16, 2, 1)]
)
def test_a_row_is_cut_into_chunks_and_short_ones_make_one(length: int, size: int, chunks: int, before: int):
    layout = layout_for_length(LSH(bucket_size=16), length)
    assert (layout.size, layout.chunk_count, layout.previous_chunks) == (size, chunks, before)


def test_order_is_by_segment_bucket_and_position_with_padding_last():
    buckets = jax.random.randint(jax.random.key(0), (2, 1, 1, 40), 0, 5)
    segments = jnp.asarray([[7] * 9 + [0] * 3 + [2] * 28, [1] * 40], jnp.int32)
    layout = layout_for_length(LSH(bucket_size=16, within_buckets=True), 40)
    rounds = jit(lambda: sort_round(jnp.zeros(1, jnp.int32), buckets, segments, layout))()
    for row in range(2):
        own, bucket = np.asarray(segments[row]), np.asarray(buckets[row, 0, 0])
        expected = sorted(range(40), key=lambda i, s=own, b=bucket: (s[i] == 0, s[i], b[i], i))
        order, runs = np.asarray(rounds.order_BHTs[row, 0, 0]), np.asarray(rounds.runs_BHTs[row, 0, 0])
        assert order.shape == (48,) and list(order[:40]) == expected
        assert np.array_equal(order[np.asarray(rounds.slots_BHTL[row, 0, 0])], np.arange(40))
        together = [(own[i], bucket[i]) if own[i] else None for i in expected]
        assert all((runs[i] == runs[i + 1]) == (together[i] == together[i + 1]) for i in range(39))
        assert (runs[40:] == NO_RUN).all()
        assert all((runs[i] == NO_RUN) == (together[i] is None) for i in range(40))
