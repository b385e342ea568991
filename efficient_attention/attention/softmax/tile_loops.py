"""Loops over tiles of attention scores: one loop per class of tiles with lists of similar length, a few tiles per step.

Axes: t tiles whose results one step computes, n tiles of a class, s steps, w tiles that each tile visits, h heads, N
layers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.softmax.tile_chunks import ChosenTiles
from efficient_attention.attention.softmax.tile_schedule import TileClass


class TileLoop(NamedTuple):
    """The static description of a loop over tiles: its classes of tiles, and the sizes of its steps."""

    classes: tuple[TileClass, ...]
    tile_count: int  # number of all computed tiles, including tiles that visit no tile
    tile_pair_bytes: int  # bytes of the scores between one query tile and one key tile
    # bytes of scores per loop step, first for tiles with separate lists of visited tiles, then for tiles with one list
    step_bytes: tuple[int, int]

    def tiles_of_step(self, tile_class: TileClass) -> int:
        """Returns how many tiles of a class one loop step computes: as many as the step size allows, spread evenly over
        the steps.
        """
        tile_bytes = self.tile_pair_bytes * tile_class.visited_Nhnw.shape[-1]
        at_most = max(1, self.step_bytes[tile_class.is_shared] // tile_bytes)
        steps = -(-len(tile_class.computed_n) // at_most)
        return -(-len(tile_class.computed_n) // steps)


def run_tile_loop(
    loop: TileLoop,
    step: Callable[[ChosenTiles, TileClass, Any], tuple[Any, list[Array]]],
    carry: Any,
    fills: tuple[float, ...],
    layer: Int[Array, ''] | None = None,
) -> tuple[Any, list[Array]]:
    """Runs the function `step` over the tiles of all classes; returns the last carry,
    and the results in the order of tiles.

    Each step returns arrays [t, ...]; the results are [tile_count, ...]. `fills` has for each array the value of tiles
    that are in no class. `layer` is the index of the layer in the lists of visited tiles, if layers differ.
    """
    results, numbers = [], []
    for tile_class in loop.classes:
        carry, arrays = run_tile_class(tile_class, loop.tiles_of_step(tile_class), step, carry, layer)
        results.append(arrays)
        numbers.append(tile_class.computed_n)
    return carry, [
        restore_tile_order(list(arrays), np.concatenate(numbers), loop.tile_count, fill)
        for arrays, fill in zip(zip(*results, strict=True), fills, strict=True)
    ]


def run_tile_class(
    tile_class: TileClass, tiles: int, step: Callable, carry: Any, layer: Int[Array, ''] | None = None
) -> tuple[Any, list[Array]]:
    """Runs the function `step` over the n tiles of one class, `tiles` at a time;
    returns the last carry and all results.

    Each step returns arrays [t, ...]; the results are [n, ...].
    """
    count = len(tile_class.computed_n)
    steps = -(-count // tiles)
    places = np.resize(np.arange(count), steps * tiles)  # repeated tiles fill the last step; their results are dropped
    is_repeat = np.arange(steps * tiles) >= count
    visited = None
    if not tile_class.is_shared:
        visited_Nhnw = tile_class.visited_Nhnw[:, :, places]
        visited_Nhstw = visited_Nhnw.reshape(*visited_Nhnw.shape[:2], steps, tiles, -1)
        visited_Nshtw = jnp.asarray(visited_Nhstw.swapaxes(1, 2))
        visited = visited_Nshtw[0 if len(visited_Nshtw) == 1 else layer]

    def body(carry: Any, chosen: tuple[Array, Array, Array | None]) -> tuple[Any, list[Array]]:
        computed_t, is_repeat_t, visited = chosen
        visited = tile_class.visited_Nhnw[0, 0, 0] if visited is None else visited
        return step(ChosenTiles(computed_t, visited, is_repeat_t), tile_class, carry)

    by_step = (
        jnp.asarray(tile_class.computed_n[places].reshape(steps, tiles)),
        jnp.asarray(is_repeat.reshape(steps, tiles)),
        visited,
    )
    if steps == 1:
        carry, arrays = body(carry, jax.tree.map(lambda x: x[0], by_step))
    else:
        carry, arrays = jax.lax.scan(body, carry, by_step)
        arrays = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    return carry, [x[:count] for x in arrays]


def restore_tile_order(arrays: list[Array], numbers_n: np.ndarray, tile_count: int, fill: float) -> Array:
    """Returns the results [n, ...] of all classes as one array [tile_count, ...] in the order
    of tiles; tiles in no class get `fill`.
    """
    x = jnp.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    if np.array_equal(numbers_n, np.arange(tile_count)):
        return x
    if len(numbers_n) < tile_count:
        x = jnp.concatenate([x, jnp.full((1, *x.shape[1:]), fill, x.dtype)])
    places = np.full(tile_count, len(numbers_n))
    places[numbers_n] = np.arange(len(numbers_n))
    return x[places]
