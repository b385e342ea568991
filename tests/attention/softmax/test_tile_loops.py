"""Loops over rows of tiles: rows come back in order, in chunks that fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.softmax.schedule import RowClass
from efficient_attention.attention.softmax.tile_chunks import ChosenTiles
from efficient_attention.attention.softmax.tile_loops import Loop, into_order, run_class, run_loop


def make_class(rows: list[int], lists: list[list[int]] | None = None) -> RowClass:
    if lists is None:
        return RowClass(np.array(rows), np.array([[[0, 1]]]), True, False, False)
    return RowClass(np.array(rows), np.array([lists]), False, True, True)


def own_and_lists(chosen: ChosenTiles, _: RowClass, total: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Counts rows that are no repeats; returns each row's number and the sum of its list."""
    sums = jnp.full(chosen.rows.shape, chosen.lists.sum()) if chosen.is_shared else chosen.lists[0].sum(-1)
    return total + (~chosen.is_repeat).sum(), [chosen.rows, sums]


@pytest.mark.parametrize('rows', [1, 2, 3, 5])
@pytest.mark.parametrize('is_shared', [False, True])
def test_a_class_runs_in_chunks_and_drops_repeats(rows: int, is_shared: bool):
    numbers, lists = [4, 1, 7, 2, 0], [[1, 2], [3, 4], [5, 6], [7, 8], [9, 0]]
    own = make_class(numbers, None if is_shared else lists)
    total, (found, sums) = run_class(own, rows, own_and_lists, jnp.asarray(0))
    assert total == 5
    np.testing.assert_array_equal(found, numbers)
    np.testing.assert_array_equal(sums, [1] * 5 if is_shared else np.sum(lists, 1))


def test_a_loop_returns_all_tiles_in_order_and_fills_the_rest():
    classes = make_class([5, 2], [[1, 1], [2, 2]]), make_class([0, 3, 4])
    loop = Loop(classes, 7, pair_bytes=8, chunk_bytes=(16, 16))
    total, (found, sums) = run_loop(loop, own_and_lists, jnp.asarray(10), (-1.0, -2.0))
    assert total == 15
    np.testing.assert_array_equal(found, [0, -1, 2, 3, 4, 5, -1])
    np.testing.assert_array_equal(sums, [1, -2, 4, 1, 1, 2, -2])


def test_chunks_fit_their_bytes_and_are_even():
    own = make_class(list(range(10)), [[0, 1]] * 10)
    sizes = {
        room: Loop((own,), 10, pair_bytes=4, chunk_bytes=(room, 1)).rows_of_chunk(own) for room in (1, 8, 24, 48, 10**9)
    }
    shared = make_class(list(range(10)))
    assert Loop((shared,), 10, pair_bytes=4, chunk_bytes=(1, 48)).rows_of_chunk(shared) == 5
    assert sizes == {1: 1, 8: 1, 24: 3, 48: 5, 10**9: 10}  # 4 chunks of 3 hold 10 rows better than 3, 3, 3, 1


def test_rows_that_are_in_order_already_are_not_moved():
    x = jnp.arange(3)
    assert into_order([x], np.arange(3), 3, 0.0) is x
