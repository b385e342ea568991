"""Cuts arrays into tiles, and selects the tiles that one step of a loop reads.

The work of one loop step is called a chunk: the results of a few tiles of one side, each from a list of tiles of the
other side. The former are the computed tiles: of queries, or of keys for the gradients of keys and values. The latter
are the visited tiles.

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


class SideMaskInputs(NamedTuple):
    """Arrays of queries, or of keys, that the mask and dropout read; as in `TileOperands`, the last tile is empty."""

    positions_b1nS: Array
    segments_B1nS: Array | None
    numbers_11nS: Array  # index of the query or key in the request, -1 at padding


class TileMaskInputs(NamedTuple):
    """The arrays of one tile pass that have no gradient."""

    queries: SideMaskInputs
    keys: SideMaskInputs
    dropout_seeds_BGh: Array | None


class ChosenTiles(NamedTuple):
    """The indices of the tiles of a chunk."""

    computed_t: Array
    visited: Array | np.ndarray  # per computed tile [1 or heads, t, w], or [w] if all visit the same tiles
    is_repeat_t: Array  # marks computed tiles that only pad the chunk

    @property
    def is_shared(self) -> bool:
        """Whether all computed tiles visit the same tiles."""
        return self.visited.ndim == 1


class TileChunk(NamedTuple):
    """The pairs of queries and keys that one step of a loop computes.

    Arrays over these pairs have the axes [B, G], then those of the computed side, then those of the visited side: by
    query [B, G, t, h, S, w, S], by key [B, G, t, S, w, h, S]. The computed side is therefore always the left side of
    the matrix products, and no array of scores is ever transposed. An axis along which an array does not vary has size
    1.
    """

    chosen: ChosenTiles
    by_key: bool  # True: key tiles are computed and query tiles visited; False: the reverse
    checks_pattern: bool  # the pattern forbids some pair of these tiles
    checks_keys: bool  # some key of these tiles does not exist
    size: int  # S

    def select_query_tiles(self, x: Shaped[Array, '...']) -> Array:
        """Returns the chunk's query tiles of `x` [B, G, n, ...]: [B, G, t, ...] or, by key, [B, G, t or 1, w, ...]."""
        return (take_visited if self.by_key else take_computed)(self.chosen, x)

    def select_key_tiles(self, x: Shaped[Array, '...']) -> Array:
        """Returns the chunk's key tiles of `x` [B, G, n, ...]: [B, G, t or 1, w, ...] or, by key, [B, G, t, ...]."""
        return (take_computed if self.by_key else take_visited)(self.chosen, x)

    def broadcast_queries(self, x_b1nS: Array) -> Array:
        """Returns the chunk's values of each query, with axes of 1 so that they broadcast over the pairs."""
        picked = self.select_query_tiles(x_b1nS)
        return picked[:, :, :, None, :, None, :] if self.by_key else picked[:, :, :, None, :, None, None]

    def broadcast_keys(self, x_b1nS: Array) -> Array:
        """Returns the chunk's values of each key, with axes of 1 so that they broadcast over the pairs."""
        picked = self.select_key_tiles(x_b1nS)
        return picked[..., None, None, None] if self.by_key else picked[:, :, :, None, None]

    def broadcast_heads(self, x_BGh: Array) -> Array:
        """Returns the values of each query head, with axes of 1 so that they broadcast over the pairs."""
        before = (slice(None), slice(None), None)
        return (
            x_BGh[(*before, None, None, slice(None), None)]
            if self.by_key
            else x_BGh[(*before, slice(None), *3 * (None,))]
        )

    def arrange_pairs(self, x_bghtqm: Shaped[Array, '...']) -> Array:
        """Returns values of pairs, such as a bias, moved from [b, g, h, t, q, m] into the layout of this class.

        If the chunk's tiles visit the same tiles, the array comes with t = 1. Its axis of computed positions (m by key,
        else q) then holds the positions of all tiles. An axis of 1 stays 1.
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


def split_into_tiles(x: Shaped[Array, '...'], listing_L: np.ndarray, size: int, fill: int = 0) -> Array:
    """Returns `x` [B, L, ...] as tiles [B, n, S, ...] in the listed order, padded to whole tiles and one empty tile."""
    length = x.shape[1]
    x = reorder(x, listing_L, 1)
    tiles = -(-length // size) + 1
    padding = [(0, 0), (0, tiles * size - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding, constant_values=jnp.asarray(fill, x.dtype))
    return x.reshape(x.shape[0], tiles, size, *x.shape[2:])


def reorder(x: Shaped[Array, '...'], order: np.ndarray, axis: int) -> Array:
    """Returns `x` with its entries along `axis` in another order; the gradient is a gather instead of a scatter."""
    if np.array_equal(order, np.arange(len(order))):
        return x

    @jax.custom_vjp
    def move(x: Shaped[Array, '...']) -> Array:
        return jnp.take(x, order, axis=axis)

    move.defvjp(lambda x: (move(x), None), lambda _, dx: (jnp.take(dx, np.argsort(order), axis=axis),))
    return move(x)


def make_side(
    positions_bL: Any, segments_BL: Array | None, listing_L: np.ndarray, size: int, numbers_L: Array | None = None
) -> SideMaskInputs:
    """Returns the arrays of queries, or of keys, that the mask and dropout read, in the listed order."""
    numbers_L = jnp.arange(len(listing_L), dtype=jnp.int32) if numbers_L is None else numbers_L
    return SideMaskInputs(
        split_into_tiles(jnp.asarray(positions_bL), listing_L, size)[:, None],
        None if segments_BL is None else split_into_tiles(segments_BL, listing_L, size)[:, None],
        split_into_tiles(numbers_L[None], listing_L, size, fill=-1)[:, None],
    )


def take_computed(chosen: ChosenTiles, x: Shaped[Array, '...']) -> Array:
    """Returns the computed tiles of `x` [B, G, n, ...]: [B, G, t, ...]."""
    return x.at[:, :, chosen.computed_t].get(mode='promise_in_bounds')


def take_visited(chosen: ChosenTiles, x: Shaped[Array, '...']) -> Array:
    """Returns the visited tiles of `x` [B, G, n, ...]: [B, G, t, w, ...]; t is 1 if computed tiles share their list.

    If each head has its own lists of tiles, axis 1 is the heads.
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
    """Returns the float32 dot products of the chunk's query vectors and key vectors, over its pairs."""
    computed, visited = (keys, queries) if chunk.by_key else (queries, keys)
    batch, visited = product_axes(chunk, visited)
    axes = ((computed.ndim - 1,), (visited.ndim - 1,)), (batch, batch)
    return jax.lax.dot_general(computed, visited, axes, preferred_element_type=jnp.float32)


def weighted_sums(chunk: TileChunk, weights: Shaped[Array, '...'], visited: Shaped[Array, '...']) -> Array:
    """Returns for each computed position the float32 sum of visited vectors, times its weights over the pairs.

    The shape is [B, G, t, h, S, K] by query, [B, G, t, S, K] by key.
    """
    batch, visited = product_axes(chunk, visited)
    summed = tuple(range(len(batch), visited.ndim - 1))
    axes = tuple(range(weights.ndim - len(summed), weights.ndim))
    return jax.lax.dot_general(weights, visited, ((axes, summed), (batch, batch)), preferred_element_type=jnp.float32)


def product_axes(chunk: TileChunk, visited: Shaped[Array, '...']) -> tuple[tuple[int, ...], Array]:
    """Returns the batch axes of a matrix product and its right side: one large product if tiles share their list."""
    return ((0, 1), visited[:, :, 0]) if chunk.chosen.is_shared else ((0, 1, 2), visited)
