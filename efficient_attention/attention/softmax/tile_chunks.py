"""Arrays cut into tiles, and what one chunk of a loop picks of them.

A chunk is what one step of a loop computes: the results of some tiles of one side (the computed tiles: of queries, or
of keys for the gradients of keys and values), each from a list of tiles of the other side (the tiles that it visits).

Axes here: B batch rows, G key heads, h query heads of a key head, n tiles, S positions of a tile, K head width; t
computed tiles of a chunk, w visited tiles of each; q and m the query and key positions that are computed together. A
leading b or g is 1 where nothing differs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped


class Side(NamedTuple):
    """What the mask and dropout need to know of queries or of keys; the last tile is empty."""

    positions_b1nS: Array
    segments_B1nS: Array | None
    numbers_11nS: Array  # which query or key it is in the request, -1 where there is none


class TileMaskInputs(NamedTuple):
    """Arrays of a pass that have no gradient."""

    queries: Side
    keys: Side
    dropout_seeds_BGh: Array | None


class ChosenTiles(NamedTuple):
    """The numbers of the tiles of a chunk."""

    computed_t: Array
    visited: Array | np.ndarray  # of each computed tile [1 or heads, t, w], or [w] where all visit the same
    is_repeat_t: Array  # computed tiles that only fill up the chunk

    @property
    def is_shared(self) -> bool:
        """Whether all computed tiles visit the same tiles."""
        return self.visited.ndim == 1


class TileChunk(NamedTuple):
    """The pairs of queries and keys that one step of a loop computes.

    Arrays over these pairs have the axes [B, G], then those of the computed side, then those of the visited side: by
    query [B, G, t, h, S, w, S], by key [B, G, t, S, w, h, S]. So the computed side is always the left side of the
    matrix products and no array of scores is ever transposed. An array that does not vary along an axis has 1 there.
    """

    chosen: ChosenTiles
    by_key: bool  # key tiles are computed and query tiles visited; else the other way round
    checks_pattern: bool  # some pair of these tiles is not in the pattern
    checks_keys: bool  # some key of these tiles does not exist
    size: int  # S

    def queries(self, x: Shaped[Array, '...']) -> Array:
        """The chunk's query tiles of `x` [B, G, n, ...]: [B, G, t, ...] or, by key, [B, G, t or 1, w, ...]."""
        return (take_visited if self.by_key else take_computed)(self.chosen, x)

    def keys(self, x: Shaped[Array, '...']) -> Array:
        """The chunk's key tiles of `x` [B, G, n, ...]: [B, G, t or 1, w, ...] or, by key, [B, G, t, ...]."""
        return (take_computed if self.by_key else take_visited)(self.chosen, x)

    def spread_queries(self, x_b1nS: Array) -> Array:
        """The chunk's values of each query, with axes of 1 so that they broadcast over the pairs."""
        picked = self.queries(x_b1nS)
        return picked[:, :, :, None, :, None, :] if self.by_key else picked[:, :, :, None, :, None, None]

    def spread_keys(self, x_b1nS: Array) -> Array:
        """The chunk's values of each key, with axes of 1 so that they broadcast over the pairs."""
        picked = self.keys(x_b1nS)
        return picked[..., None, None, None] if self.by_key else picked[:, :, :, None, None]

    def spread_heads(self, x_BGh: Array) -> Array:
        """The values of each query head, with axes of 1 so that they broadcast over the pairs."""
        before = (slice(None), slice(None), None)
        return (
            x_BGh[(*before, None, None, slice(None), None)]
            if self.by_key
            else x_BGh[(*before, slice(None), *3 * (None,))]
        )

    def pairs(self, x_bghtqm: Shaped[Array, '...']) -> Array:
        """Values of pairs, such as a bias, from [b, g, h, t, q, m] into the layout that this class describes.

        Where the chunk's tiles visit the same tiles, the array comes with t = 1, and its axis of computed positions (m
        by key, else q) holds those of all tiles; an axis of 1 stays 1.
        """
        batch, groups, heads, tiles, queries, keys = x_bghtqm.shape
        if self.chosen.is_shared and (keys if self.by_key else queries) > 1:
            tiles = self.chosen.computed_t.shape[0]
        q, m = (self.size if count > 1 else 1 for count in (queries, keys))
        if not self.by_key:
            return x_bghtqm.reshape(batch, groups, heads, tiles, q, -1, m).swapaxes(2, 3)
        if self.chosen.is_shared:
            return x_bghtqm.reshape(batch, groups, heads, -1, q, tiles, m).transpose(0, 1, 5, 6, 3, 2, 4)
        return x_bghtqm.reshape(batch, groups, heads, tiles, -1, q, m).transpose(0, 1, 3, 6, 4, 2, 5)


def into_tiles(x: Shaped[Array, '...'], listing_L: np.ndarray, size: int, fill: int = 0) -> Array:
    """`x` [B, L, ...] as tiles [B, n, S, ...] in the listed order, filled up to whole tiles and one empty tile more."""
    length = x.shape[1]
    x = reorder(x, listing_L, 1)
    tiles = -(-length // size) + 1
    padding = [(0, 0), (0, tiles * size - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding, constant_values=jnp.asarray(fill, x.dtype))
    return x.reshape(x.shape[0], tiles, size, *x.shape[2:])


def reorder(x: Shaped[Array, '...'], order: np.ndarray, axis: int) -> Array:
    """`x` with all entries along `axis` in another order; the gradient comes back by gathering, not by scattering."""
    if np.array_equal(order, np.arange(len(order))):
        return x

    @jax.custom_vjp
    def move(x: Shaped[Array, '...']) -> Array:
        return jnp.take(x, order, axis=axis)

    move.defvjp(lambda x: (move(x), None), lambda _, dx: (jnp.take(dx, np.argsort(order), axis=axis),))
    return move(x)


def make_side(
    positions_bL: Any, segments_BL: Array | None, listing_L: np.ndarray, size: int, numbers_L: Array | None = None
) -> Side:
    """What the mask and dropout need to know of queries, or of keys, listed in this order."""
    numbers_L = jnp.arange(len(listing_L), dtype=jnp.int32) if numbers_L is None else numbers_L
    return Side(
        into_tiles(jnp.asarray(positions_bL), listing_L, size)[:, None],
        None if segments_BL is None else into_tiles(segments_BL, listing_L, size)[:, None],
        into_tiles(numbers_L[None], listing_L, size, fill=-1)[:, None],
    )


def take_computed(chosen: ChosenTiles, x: Shaped[Array, '...']) -> Array:
    """The computed tiles of `x` [B, G, n, ...]: [B, G, t, ...]."""
    return x.at[:, :, chosen.computed_t].get(mode='promise_in_bounds')


def take_visited(chosen: ChosenTiles, x: Shaped[Array, '...']) -> Array:
    """The visited tiles of `x` [B, G, n, ...]: [B, G, t, w, ...]; t is 1 where computed tiles share their list.

    Where each head has lists of its tiles, axis 1 holds the heads.
    """
    if chosen.is_shared:
        width = len(chosen.visited)
        is_start = isinstance(chosen.visited, np.ndarray) and np.array_equal(chosen.visited, np.arange(width))
        picked = x[:, :, :width] if is_start else x.at[:, :, chosen.visited].get(mode='promise_in_bounds')
        return picked[:, :, None]
    if chosen.visited.shape[0] == 1:
        return x.at[:, :, chosen.visited[0]].get(mode='promise_in_bounds')
    x = jnp.broadcast_to(x, (x.shape[0], chosen.visited.shape[0], *x.shape[2:]))
    by_head = jax.vmap(
        lambda of_head, visited: of_head.at[:, visited].get(mode='promise_in_bounds'), in_axes=(1, 0), out_axes=1
    )
    return by_head(x, chosen.visited)


def dot_products(chunk: TileChunk, queries: Shaped[Array, '...'], keys: Shaped[Array, '...']) -> Array:
    """The float32 dot products of vectors of queries and of keys, as the chunk picks them, over its pairs."""
    computed, visited = (keys, queries) if chunk.by_key else (queries, keys)
    batch, visited = product_axes(chunk, visited)
    axes = ((computed.ndim - 1,), (visited.ndim - 1,)), (batch, batch)
    return jax.lax.dot_general(computed, visited, axes, preferred_element_type=jnp.float32)


def weighted_sums(chunk: TileChunk, weights: Shaped[Array, '...'], visited: Shaped[Array, '...']) -> Array:
    """For each computed position the float32 sum of the visited vectors times its weights, which lie over the pairs.

    It is [B, G, t, h, S, K] by query, [B, G, t, S, K] by key.
    """
    batch, visited = product_axes(chunk, visited)
    summed = tuple(range(len(batch), visited.ndim - 1))
    axes = tuple(range(weights.ndim - len(summed), weights.ndim))
    return jax.lax.dot_general(weights, visited, ((axes, summed), (batch, batch)), preferred_element_type=jnp.float32)


def product_axes(chunk: TileChunk, visited: Shaped[Array, '...']) -> tuple[tuple[int, ...], Array]:
    """The batch axes of a matrix product, and its right side: one large product where tiles share their list."""
    return ((0, 1), visited[:, :, 0]) if chunk.chosen.is_shared else ((0, 1, 2), visited)
