"""Picking tiles: arrays in tiles, and the parts of them that one chunk of a loop reads.

Axes here: B rows, G key heads, h query heads of a key head, n tiles, S positions of a tile, K head width; t tiles of a
chunk, w tiles of a list; q and m the query and key positions that are computed together, r and c the rows and columns
of a matrix of scores. A leading b or g is 1 where nothing differs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Side(NamedTuple):
    """What the mask and dropout need to know of queries or of keys; the last tile is empty."""

    positions_b1nS: Array
    segments_B1nS: Array | None
    numbers_11nS: Array  # which query or key it is in the request, -1 where there is none


class MaskInputs(NamedTuple):
    """Arrays of a pass that have no gradient."""

    queries: Side
    keys: Side
    dropout_seeds_BGh: Array | None


class ChosenTiles(NamedTuple):
    """Tile numbers of a chunk: its own rows [t] and the other side's, [hh, t, w], or [w] for all rows alike."""

    rows: Array
    lists: Array | np.ndarray
    is_repeat: Array  # rows [t] that only fill up the chunk

    @property
    def is_shared(self) -> bool:
        """Whether all rows visit the same tiles."""
        return self.lists.ndim == 1


class Chunk(NamedTuple):
    """Pairs that are computed together: rows of tiles of one side, each with the tiles of the other side it visits.

    Arrays over these pairs are [B, G, *own, *other]: by query the chunk's own axes are [t, h, S] and the other's
    [w, S], by key its own are [t, S] and the other's [w, h, S]. So the own side is always the rows of the matrix
    products and no array of scores is ever transposed. An array that does not vary along an axis has 1 there.
    """

    chosen: ChosenTiles
    by_key: bool  # the chunk's own rows are key tiles and the lists hold query tiles; else the other way round
    checks_pattern: bool  # some pair of these tiles is not in the pattern
    checks_keys: bool  # some key of these tiles does not exist
    size: int  # S

    def queries(self, x: Array) -> Array:
        """The queries' tiles, of axis 2 of `x`: [B, G, t, ...] or, by key, [B, G, t or 1, w, ...]."""
        return (take_listed if self.by_key else take_rows)(self.chosen, x)

    def keys(self, x: Array) -> Array:
        """The keys' tiles, of axis 2 of `x`: [B, G, t or 1, w, ...] or, by key, [B, G, t, ...]."""
        return (take_rows if self.by_key else take_listed)(self.chosen, x)

    def spread_queries(self, x_b1nS: Array) -> Array:
        """Values of each query, to be broadcast over the pairs."""
        picked = self.queries(x_b1nS)
        return picked[:, :, :, None, :, None, :] if self.by_key else picked[:, :, :, None, :, None, None]

    def spread_keys(self, x_b1nS: Array) -> Array:
        """Values of each key, to be broadcast over the pairs."""
        picked = self.keys(x_b1nS)
        return picked[..., None, None, None] if self.by_key else picked[:, :, :, None, None]

    def spread_heads(self, x_BGh: Array) -> Array:
        """Values of each head, to be broadcast over the pairs."""
        before = (slice(None), slice(None), None)
        return (
            x_BGh[(*before, None, None, slice(None), None)]
            if self.by_key
            else x_BGh[(*before, slice(None), *3 * (None,))]
        )

    def pairs(self, x: Array) -> Array:
        """An array over the pairs from [b, g, h, t, q, m]; if rows share a list, t is 1 and q or m holds them all."""
        batch, groups, heads, rows, queries, keys = x.shape
        tiles = self.chosen.rows.shape[0] if self.chosen.is_shared and x.shape[5 if self.by_key else 4] > 1 else rows
        q, m = (self.size if count > 1 else 1 for count in (queries, keys))
        if not self.by_key:
            return x.reshape(batch, groups, heads, tiles, q, -1, m).swapaxes(2, 3)
        if self.chosen.is_shared:
            return x.reshape(batch, groups, heads, -1, q, tiles, m).transpose(0, 1, 5, 6, 3, 2, 4)
        return x.reshape(batch, groups, heads, tiles, -1, q, m).transpose(0, 1, 3, 6, 4, 2, 5)


def into_tiles(x: Array, listing: np.ndarray, size: int, fill: int = 0) -> Array:
    """[B, L, ...] to [B, n, S, ...] in the listed order, filled up to whole tiles and one empty tile more."""
    length = x.shape[1]
    x = reorder(x, listing, 1)
    tiles = -(-length // size) + 1
    padding = [(0, 0), (0, tiles * size - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding, constant_values=jnp.asarray(fill, x.dtype))
    return x.reshape(x.shape[0], tiles, size, *x.shape[2:])


def reorder(x: Array, order: np.ndarray, axis: int) -> Array:
    """`x` with all entries along `axis` in another order; the gradient comes back by gathering, not by scattering."""
    if np.array_equal(order, np.arange(len(order))):
        return x

    @jax.custom_vjp
    def move(x: Array) -> Array:
        return jnp.take(x, order, axis=axis)

    move.defvjp(lambda x: (move(x), None), lambda _, dx: (jnp.take(dx, np.argsort(order), axis=axis),))
    return move(x)


def make_side(positions: Any, segments_BL: Array | None, listing: np.ndarray, size: int) -> Side:
    """Positions, segments and numbers in tiles."""
    numbers = jnp.arange(len(listing), dtype=jnp.int32)[None]
    return Side(
        into_tiles(jnp.asarray(positions), listing, size)[:, None],
        None if segments_BL is None else into_tiles(segments_BL, listing, size)[:, None],
        into_tiles(numbers, listing, size, fill=-1)[:, None],
    )


def take_rows(chosen: ChosenTiles, x: Array) -> Array:
    """The chunk's own tiles: axis 2, n, becomes t."""
    return x.at[:, :, chosen.rows].get(mode='promise_in_bounds')


def take_listed(chosen: ChosenTiles, x: Array) -> Array:
    """The other side's tiles: axis 2, n, becomes t, w; with shared lists t is 1. Lists by head: axis 1 is the heads."""
    if chosen.is_shared:
        width = len(chosen.lists)
        is_start = isinstance(chosen.lists, np.ndarray) and np.array_equal(chosen.lists, np.arange(width))
        picked = x[:, :, :width] if is_start else x.at[:, :, chosen.lists].get(mode='promise_in_bounds')
        return picked[:, :, None]
    if chosen.lists.shape[0] == 1:
        return x.at[:, :, chosen.lists[0]].get(mode='promise_in_bounds')
    x = jnp.broadcast_to(x, (x.shape[0], chosen.lists.shape[0], *x.shape[2:]))
    by_head = jax.vmap(
        lambda of_head, lists: of_head.at[:, lists].get(mode='promise_in_bounds'), in_axes=(1, 0), out_axes=1
    )
    return by_head(x, chosen.lists)


def products(chunk: Chunk, rows: Array, columns: Array) -> Array:
    """float32 products of the own side's rows and the other side's, over the pairs; both as the chunk picks them."""
    batch, columns = product_axes(chunk, columns)
    axes = ((rows.ndim - 1,), (columns.ndim - 1,)), (batch, batch)
    return jax.lax.dot_general(rows, columns, axes, preferred_element_type=jnp.float32)


def mixtures(chunk: Chunk, weights: Array, columns: Array) -> Array:
    """float32 [B, G, *own, K]: for each own row the sum of the other side's rows times their weights."""
    batch, columns = product_axes(chunk, columns)
    summed = tuple(range(len(batch), columns.ndim - 1))
    rows = tuple(range(weights.ndim - len(summed), weights.ndim))
    return jax.lax.dot_general(weights, columns, ((rows, summed), (batch, batch)), preferred_element_type=jnp.float32)


def product_axes(chunk: Chunk, columns: Array) -> tuple[tuple[int, ...], Array]:
    """The batch axes of a product, and its right side: where rows share a list they are one large product."""
    return ((0, 1), columns[:, :, 0]) if chunk.chosen.is_shared else ((0, 1, 2), columns)
