"""Tests how many neighbouring chunks and rounds a device computes in one step, and the buffers of rounds and chunks."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.lsh.chunk_loops import add_chunks, chunks_per_step, largest_divisor, put_chunks
from efficient_attention.attention.lsh.definition import LSH, layout_for_length


@pytest.mark.parametrize('number, at_most, divisor', [(12, 5, 4), (12, 100, 12), (7, 6, 1), (1, 1, 1)])
def test_the_largest_divisor_that_fits(number: int, at_most: int, divisor: int):
    assert largest_divisor(number, at_most) == divisor


def test_a_step_takes_chunks_of_one_round_before_it_takes_several_rounds():
    """A round has 64 chunks of 64 x 128 float32 scores: 32 KiB per chunk, row and head."""
    layout = layout_for_length(LSH(bucket_size=64, rounds=4), 4096)
    with using_platform('cpu'):
        assert chunks_per_step(layout, rows=1, rounds=4) == (1, 32)
        assert chunks_per_step(layout, rows=1024, rounds=4) == (1, 1)
    with using_platform('gpu'):
        assert chunks_per_step(layout, rows=16, rounds=4) == (4, 64)


def test_what_is_put_replaces_and_what_is_added_adds_up():
    buffer, start = jnp.ones((1, 1, 2, 4, 3)), (jnp.int32(1), jnp.int32(2))
    expected = np.ones((1, 1, 2, 4, 3))
    expected[:, :, 1, 2:4] = 5.0
    np.testing.assert_array_equal(put_chunks(buffer, jnp.full((1, 1, 1, 2, 3), 5.0), start), expected)
    np.testing.assert_array_equal(add_chunks(buffer, jnp.full((1, 1, 1, 2, 3), 4.0), start), expected)
