"""Picking tiles: arrays in tiles, and the parts of them that one chunk of a loop reads.

Axes here: B rows, G key heads, h query heads of a key head, n tiles, S positions of a tile, K head width; t tiles of a
chunk, w tiles of a list; q and m the query and key positions that are computed together. A leading b or g is 1 where
nothing differs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

TILE = 64  # S


class Side(NamedTuple):
    """What the mask and dropout need to know of queries or of keys; the last tile is empty."""

    positions_b1nS: Array
    segments_B1nS: Array | None
    numbers_11nS: Array  # which query or key it is in the request, -1 where there is none


class Facts(NamedTuple):
    """Arrays of a pass that have no gradient."""

    queries: Side
    keys: Side
    dropout_seeds_BGh: Array | None


class Pick(NamedTuple):
    """Tile numbers of a chunk: its own rows [t] and the other side's, [hh, t, w], or [w] for all rows alike."""

    rows: Array
    lists: Array | np.ndarray
    is_repeat: Array  # rows [t] that only fill up the chunk

    @property
    def is_shared(self) -> bool:
        """Whether all rows visit the same tiles."""
        return self.lists.ndim == 1


class Chunk(NamedTuple):
    """The positions that are computed together: how to pick the query side and the key side."""

    query: Callable[[Array, int], Array]
    key: Callable[[Array, int], Array]
    pick: Pick
    by_key: bool
    needs_mask: bool


def make_chunk(pick: Pick, by_key: bool, needs_mask: bool) -> Chunk:
    """With `by_key` the chunk's own rows are key tiles and the lists hold query tiles, else the other way round."""
    own, other = (functools.partial(function, pick) for function in (pick_own, pick_other))
    return Chunk(other if by_key else own, own if by_key else other, pick, by_key, needs_mask)


def into_tiles(x: Array, listing: np.ndarray, fill: int = 0) -> Array:
    """[B, L, ...] to [B, n, S, ...] in the listed order, filled up to whole tiles and one empty tile more."""
    length = x.shape[1]
    x = reorder(x, listing, 1)
    tiles = -(-length // TILE) + 1
    padding = [(0, 0), (0, tiles * TILE - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding, constant_values=jnp.asarray(fill, x.dtype))
    return x.reshape(x.shape[0], tiles, TILE, *x.shape[2:])


def reorder(x: Array, order: np.ndarray, axis: int) -> Array:
    """`x` with all entries along `axis` in another order; the gradient comes back by gathering, not by scattering."""
    if np.array_equal(order, np.arange(len(order))):
        return x

    @jax.custom_vjp
    def move(x: Array) -> Array:
        return jnp.take(x, order, axis=axis)

    move.defvjp(lambda x: (move(x), None), lambda _, dx: (jnp.take(dx, np.argsort(order), axis=axis),))
    return move(x)


def make_side(positions: Any, segments: Array | None, listing: np.ndarray) -> Side:
    """Positions, segments and numbers in tiles."""
    numbers = jnp.arange(len(listing), dtype=jnp.int32)[None]
    return Side(
        into_tiles(jnp.asarray(positions), listing)[:, None],
        None if segments is None else into_tiles(segments, listing)[:, None],
        into_tiles(numbers, listing, fill=-1)[:, None],
    )


def pick_own(pick: Pick, x: Array, trailing: int) -> Array:
    """Own tiles, axis n to t; with shared lists t is 1 and the chunk's tiles lie one after another along S.

    `trailing`: how many axes lie behind n: 1 (S) or 2 (S, K).
    """
    axis = x.ndim - trailing - 1
    x = jnp.take(x, pick.rows, axis=axis)
    return side_by_side(x[(slice(None),) * axis + (None,)], trailing) if pick.is_shared else x


def pick_other(pick: Pick, x: Array, trailing: int) -> Array:
    """The other side's tiles, axis n to t (1 with shared lists); the w tiles of a row lie one after another along S.

    Where lists differ by head, axis 1 of the result is the heads.
    """
    axis = x.ndim - trailing - 1
    if pick.is_shared:
        width = len(pick.lists)
        is_start = isinstance(pick.lists, np.ndarray) and np.array_equal(pick.lists, np.arange(width))
        picked = jax.lax.slice_in_dim(x, 0, width, axis=axis) if is_start else jnp.take(x, pick.lists, axis=axis)
        return side_by_side(picked[(slice(None),) * axis + (None,)], trailing)
    if pick.lists.shape[0] == 1:
        return side_by_side(jnp.take(x, pick.lists[0], axis=axis), trailing)
    x = jnp.broadcast_to(x, (x.shape[0], pick.lists.shape[0], *x.shape[2:]))
    per_head = jax.vmap(lambda own, lists: jnp.take(own, lists, axis=axis - 1), in_axes=(1, 0), out_axes=1)
    return side_by_side(per_head(x, pick.lists), trailing)


def side_by_side(x: Array, trailing: int) -> Array:
    """[..., w, S, ...] to [..., w S, ...]."""
    axis = x.ndim - trailing - 1
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
