"""Tests window blocks: each block reads the keys in its queries' windows, and nothing of another batch row."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.routing.windows import (
    WindowBlocks,
    key_blocks,
    make_window_blocks,
    query_blocks,
    window_positions,
)


def test_a_row_is_cut_into_blocks_as_wide_as_a_window_reaches():
    assert make_window_blocks(10, 4, causal=False) == WindowBlocks(4, 3, 1, 1)
    assert make_window_blocks(10, 4, causal=True) == WindowBlocks(4, 3, 1, 0)
    assert make_window_blocks(4, 9, causal=True) == WindowBlocks(4, 1, 0, 0)
    assert make_window_blocks(10, 4, causal=False).read_block_count == 3


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('window', [1, 3, 5, 10, 30])
def test_blocks_hold_the_tokens_of_their_places_and_zeros_outside_the_row(window: int, causal: bool):
    cut = make_window_blocks(10, window, causal=causal)
    x = jnp.arange(1, 11)[None, None]
    query, key = window_positions(cut)
    for found, where in ((query_blocks(x, cut), query), (key_blocks(x, cut), key)):
        assert found.shape == where.shape
        np.testing.assert_array_equal(found, np.where((where >= 0) & (where < 10), where + 1, 0))
    for place in range(10):
        block = place // cut.size
        reached = range(max(0, place - window), min(10, place + 1 + (0 if causal else window)))
        assert set(reached) <= set(key[0, 0, block])
