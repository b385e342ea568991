"""Loops over the rows of a schedule, some rows of tiles at a time, each class of rows with tiles enough of its own.

Axes: t rows (tiles of the side whose results are computed) of a chunk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.softmax.schedule import RowClass
from efficient_attention.attention.softmax.tile_chunks import ChosenTiles


class Loop(NamedTuple):
    """What a loop over chunks of rows needs to know besides the rows."""

    classes: tuple[RowClass, ...]
    tiles: int  # rows in all, also those without a list
    pair_bytes: int  # of the scores of one pair of tiles
    chunk_bytes: tuple[int, int]  # where rows have lists of their own, and where they share one

    def rows_of_chunk(self, row_class: RowClass) -> int:
        """How many rows one step computes."""
        at_most = max(1, self.chunk_bytes[row_class.is_shared] // (self.pair_bytes * row_class.lists.shape[-1]))
        chunks = -(-len(row_class.rows) // at_most)
        return -(-len(row_class.rows) // chunks)


def run_loop(
    loop: Loop,
    step: Callable[[ChosenTiles, RowClass, Any], tuple[Any, list[Array]]],
    carry: Any,
    fills: tuple[float, ...],
) -> tuple[Any, list[Array]]:
    """`step` over all chunks of all classes: the last carry, and its arrays [t, ...] as [tiles, ...].

    fills: for each array the value in rows that no class holds.
    """
    results, numbers = [], []
    for row_class in loop.classes:
        carry, arrays = run_class(row_class, loop.rows_of_chunk(row_class), step, carry)
        results.append(arrays)
        numbers.append(row_class.rows)
    parts = zip(*results, strict=True)
    return carry, [
        into_order(list(x), np.concatenate(numbers), loop.tiles, fill) for x, fill in zip(parts, fills, strict=True)
    ]


def run_class(row_class: RowClass, rows: int, step: Callable, carry: Any) -> tuple[Any, list[Array]]:
    """`step` over chunks of `rows` rows of one class."""
    chunks = -(-len(row_class.rows) // rows)
    numbers = np.resize(
        np.arange(len(row_class.rows)), chunks * rows
    )  # the last chunk repeats rows; their results are dropped
    is_repeat = np.arange(chunks * rows) >= len(row_class.rows)
    lists = None
    if not row_class.is_shared:
        lists = jnp.asarray(row_class.lists[:, numbers].reshape(len(row_class.lists), chunks, rows, -1).swapaxes(0, 1))

    def body(carry: Any, part: tuple[Array, Array, Array | None]) -> tuple[Any, list[Array]]:
        tile_numbers, is_repeat, lists = part
        return step(
            ChosenTiles(tile_numbers, row_class.lists[0, 0] if lists is None else lists, is_repeat), row_class, carry
        )

    parts = (
        jnp.asarray(row_class.rows[numbers].reshape(chunks, rows)),
        jnp.asarray(is_repeat.reshape(chunks, rows)),
        lists,
    )
    if chunks == 1:
        carry, arrays = body(carry, jax.tree.map(lambda x: x[0], parts))
    else:
        carry, arrays = jax.lax.scan(body, carry, parts)
        arrays = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    return carry, [x[: len(row_class.rows)] for x in arrays]


def into_order(parts: list[Array], numbers: np.ndarray, tiles: int, fill: float) -> Array:
    """Rows [t, ...] of all parts, whose tile numbers are given, as [tiles, ...], missing ones filled."""
    x = jnp.concatenate(parts) if len(parts) > 1 else parts[0]
    if np.array_equal(numbers, np.arange(tiles)):
        return x
    if len(numbers) < tiles:
        x = jnp.concatenate([x, jnp.full((1, *x.shape[1:]), fill, x.dtype)])
    places = np.full(tiles, len(numbers))
    places[numbers] = np.arange(len(numbers))
    return x[places]
