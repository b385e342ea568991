"""Tests that loops over tiles return their results in order, and that their steps fit the memory limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.softmax.tile_chunks import ChosenTiles
from efficient_attention.attention.softmax.tile_loops import TileLoop, restore_tile_order, run_tile_class, run_tile_loop
from efficient_attention.attention.softmax.tile_schedule import TileClass


def make_class(computed: list[int], lists: list[list[int]] | None = None) -> TileClass:
    if lists is None:
        return TileClass(np.array(computed), np.array([[[[0, 1]]]]), True, False, False)
    return TileClass(np.array(computed), np.array([[lists]]), False, True, True)


def numbers_and_lists(chosen: ChosenTiles, _: TileClass, total: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Counts the tiles that are no repeats; returns each tile's number and the sum of its list."""
    sums = jnp.full(chosen.computed_t.shape, chosen.visited.sum()) if chosen.is_shared else chosen.visited[0].sum(-1)
    return total + (~chosen.is_repeat_t).sum(), [chosen.computed_t, sums]


@pytest.mark.parametrize('tiles', [1, 2, 3, 5])
@pytest.mark.parametrize('is_shared', [False, True])
def test_a_class_runs_in_steps_and_drops_repeats(tiles: int, is_shared: bool):
    numbers, lists = [4, 1, 7, 2, 0], [[1, 2], [3, 4], [5, 6], [7, 8], [9, 0]]
    tile_class = make_class(numbers, None if is_shared else lists)
    total, (found, sums) = jax.jit(lambda: run_tile_class(tile_class, tiles, numbers_and_lists, jnp.asarray(0)))()
    assert total == 5
    np.testing.assert_array_equal(found, numbers)
    np.testing.assert_array_equal(sums, [1] * 5 if is_shared else np.sum(lists, 1))


def test_a_loop_returns_all_tiles_in_order_and_fills_the_rest():
    classes = make_class([5, 2], [[1, 1], [2, 2]]), make_class([0, 3, 4])
    loop = TileLoop(classes, 7, tile_pair_bytes=8, step_bytes=(16, 16))
    total, (found, sums) = jax.jit(lambda: run_tile_loop(loop, numbers_and_lists, jnp.asarray(10), (-1.0, -2.0)))()
    assert total == 15
    np.testing.assert_array_equal(found, [0, -1, 2, 3, 4, 5, -1])
    np.testing.assert_array_equal(sums, [1, -2, 4, 1, 1, 2, -2])


def test_steps_fit_their_bytes_and_are_even():
    separate = make_class(list(range(10)), [[0, 1]] * 10)
    tiles = {
        size: TileLoop((separate,), 10, tile_pair_bytes=4, step_bytes=(size, 1)).tiles_of_step(separate)
        for size in (1, 8, 24, 48, 10**9)
    }
    shared = make_class(list(range(10)))
    assert TileLoop((shared,), 10, tile_pair_bytes=4, step_bytes=(1, 48)).tiles_of_step(shared) == 5
    # 4 steps of 3 tiles suit 10 tiles better than steps of 3, 3, 3 and 1.
    assert tiles == {1: 1, 8: 1, 24: 3, 48: 5, 10**9: 10}


def test_tiles_that_are_in_order_already_are_not_moved():
    x = jnp.arange(3)
    assert restore_tile_order([x], np.arange(3), 3, 0.0) is x
