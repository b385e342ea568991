"""Cuts arrays into tiles for the backend `blocked`, and selects the tiles that one step of a loop reads.

The work of one loop step is called a chunk. A chunk has a few computed tiles, whose results the step computes: query
tiles, or key tiles for the gradients of keys and values. Each computed tile has a list of visited tiles of the other
kind, which it reads.

Axes here: B batch rows, G key heads, h query heads of a key head, n tiles, S positions of a tile, K head width; t
computed tiles of a chunk, w visited tiles of each; q and m the query and key positions that are computed together. A
leading b or g is 1 where nothing differs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Shaped


class TokenMaskInputs(NamedTuple):
    """The positions, segments and indices of all queries, or of all keys, cut into tiles; masks and dropout read them.
    The last tile is empty.
    """

    positions_b1nS: Array
    segments_B1nS: Array | None
    numbers_11nS: Array  # index of the query or key in the request; -1 where a tile is padded


class TileMaskInputs(NamedTuple):
    """The arrays without gradient that loops over tiles read: mask inputs of queries and of keys, and dropout seeds."""

    queries: TokenMaskInputs
    keys: TokenMaskInputs
    dropout_seeds_BGh: Array | None
    layer: Int[Array, ''] | None = None  # index of the layer in `pattern.layers`


class ChosenTiles(NamedTuple):
    """The indices of the tiles that one step of a loop computes, and of the tiles that each computed tile visits."""

    computed_t: Array
    visited: Array | np.ndarray  # [1 or heads, t, w]; or [w] if all computed tiles visit the same w tiles
    is_repeat_t: Array  # True for computed tiles that only pad the chunk

    @property
    def is_shared(self) -> bool:
        """Whether all computed tiles of the step visit the same tiles."""
        return self.visited.ndim == 1


class TileChunk(NamedTuple):
    """The query-key pairs that one step of a loop over tiles computes.

    Arrays over these pairs have the axes [B, G], then the axes of the computed tiles, then the axes of the visited
    tiles: by query [B, G, t, h, S, w, S], by key [B, G, t, S, w, h, S]. The computed tiles are therefore always the
    left operand of the matrix products, and no array of scores is ever transposed. An axis along which an array does
    not vary has size 1.
    """

    chosen: ChosenTiles
    by_key: bool  # True: computes key tiles from the query tiles that they visit; False: query tiles from key tiles
    checks_pattern: bool  # True if the pattern forbids some query-key pair in the chunk's tiles
    checks_keys: bool  # True if the chunk's tiles contain padding in place of some keys
    size: int  # S, the number of positions in a tile

    def select_query_tiles(self, x: Shaped[Array, '...']) -> Array:
        """Returns the query tiles of `x` [B, G, n, ...] that a chunk reads. These are the t computed tiles, [B, G, t,
        ...]; if `by_key`, they are the w query tiles that each computed key tile visits, [B, G, t or 1, w, ...].
        """
        return (take_visited_tiles if self.by_key else take_computed_tiles)(self.chosen, x)

    def select_key_tiles(self, x: Shaped[Array, '...']) -> Array:
        """Returns the key tiles of `x` [B, G, n, ...] that a chunk reads. These are the w key tiles that each computed
        query tile visits, [B, G, t or 1, w, ...]; if `by_key`, they are the t computed tiles, [B, G, t, ...].
        """
        return (take_computed_tiles if self.by_key else take_visited_tiles)(self.chosen, x)

    def broadcast_queries(self, x_b1nS: Array) -> Array:
        """Returns the values of `x_b1nS` for the chunk's queries, with axes of size 1 so that they broadcast over the
        chunk's query-key pairs.
        """
        picked = self.select_query_tiles(x_b1nS)
        return picked[:, :, :, None, :, None, :] if self.by_key else picked[:, :, :, None, :, None, None]

    def broadcast_keys(self, x_b1nS: Array) -> Array:
        """Returns the values of `x_b1nS` for the chunk's keys, with axes of size 1 so that they broadcast over the
        chunk's query-key pairs.
        """
        picked = self.select_key_tiles(x_b1nS)
        return picked[..., None, None, None] if self.by_key else picked[:, :, :, None, None]

    def broadcast_heads(self, x_BGh: Array) -> Array:
        """Returns the values of `x_BGh`, one per query head, with axes of size 1 so that they broadcast over the
        chunk's query-key pairs.
        """
        before = (slice(None), slice(None), None)
        return (
            x_BGh[(*before, None, None, slice(None), None)]
            if self.by_key
            else x_BGh[(*before, slice(None), *3 * (None,))]
        )

    def arrange_pairs(self, x_bghtqm: Shaped[Array, '...']) -> Array:
        """Returns an array over the chunk's query-key pairs, such as a bias, with its axes [b, g, h, t, q, m] in the
        order that `TileChunk` documents.

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
    """Returns `x` [B, L, ...] cut into tiles [B, n, S, ...] of positions in the listed order;
    padding and one empty tile come last.
    """
    length = x.shape[1]
    x = reorder(x, listing_L, 1)
    tiles = -(-length // size) + 1
    padding = [(0, 0), (0, tiles * size - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding, constant_values=jnp.asarray(fill, x.dtype))
    return x.reshape(x.shape[0], tiles, size, *x.shape[2:])


def reorder(x: Shaped[Array, '...'], order: np.ndarray, axis: int) -> Array:
    """Returns `x` with its entries along `axis` in another order; the backward pass is a gather instead of a
    scatter.
    """
    if np.array_equal(order, np.arange(len(order))):
        return x

    @jax.custom_vjp
    def move(x: Shaped[Array, '...']) -> Array:
        return jnp.take(x, order, axis=axis)

    move.defvjp(lambda x: (move(x), None), lambda _, dx: (jnp.take(dx, np.argsort(order), axis=axis),))
    return move(x)


def make_token_mask_inputs(
    positions_bL: Any, segments_BL: Array | None, listing_L: np.ndarray, size: int, numbers_L: Array | None = None
) -> TokenMaskInputs:
    """Returns the positions, segments and indices of queries, or of keys, cut into tiles in the listed order, for masks
    and dropout.
    """
    numbers_L = jnp.arange(len(listing_L), dtype=jnp.int32) if numbers_L is None else numbers_L
    return TokenMaskInputs(
        split_into_tiles(jnp.asarray(positions_bL), listing_L, size)[:, None],
        None if segments_BL is None else split_into_tiles(segments_BL, listing_L, size)[:, None],
        split_into_tiles(numbers_L[None], listing_L, size, fill=-1)[:, None],
    )


def take_computed_tiles(chosen: ChosenTiles, x: Shaped[Array, '...']) -> Array:
    """Returns the tiles of `x` [B, G, n, ...] that this step computes: [B, G, t, ...]."""
    return x.at[:, :, chosen.computed_t].get(mode='promise_in_bounds')


def take_visited_tiles(chosen: ChosenTiles, x: Shaped[Array, '...']) -> Array:
    """Returns the tiles of `x` [B, G, n, ...] that the computed tiles visit, w for each of t computed tiles: [B, G, t,
    w, ...]. Axis t has size 1 if all computed tiles visit the same tiles.

    If each head has its own list of visited tiles, axis 1 counts the heads.
    """
    if chosen.is_shared:
        width = len(chosen.visited)
        is_start = isinstance(chosen.visited, np.ndarray) and np.array_equal(chosen.visited, np.arange(width))
        picked = x[:, :, :width] if is_start else x.at[:, :, chosen.visited].get(mode='promise_in_bounds')
        return picked[:, :, None]
    if chosen.visited.shape[0] == 1:
        return x.at[:, :, chosen.visited[0]].get(mode='promise_in_bounds')
    return take_tiles_by_head(x, chosen.visited)


def take_tiles_by_head(x: Shaped[Array, '...'], tiles: Array | np.ndarray) -> Array:
    """Returns the tiles of `x` [B, 1 or G, n, ...] whose indices `tiles` [G, ...] lists for each head: [B, G, *tiles,
    ...].
    """
    x = jnp.broadcast_to(x, (x.shape[0], tiles.shape[0], *x.shape[2:]))
    by_head = jax.vmap(
        lambda of_head, chosen: of_head.at[:, chosen].get(mode='promise_in_bounds'), in_axes=(1, 0), out_axes=1
    )
    return by_head(x, tiles)


def dot_products(chunk: TileChunk, queries: Shaped[Array, '...'], keys: Shaped[Array, '...']) -> Array:
    """Returns the float32 dot products of query and key vectors over the query-key pairs of a chunk."""
    computed, visited = (keys, queries) if chunk.by_key else (queries, keys)
    batch, visited = matrix_product_axes(chunk, visited)
    axes = ((computed.ndim - 1,), (visited.ndim - 1,)), (batch, batch)
    return jax.lax.dot_general(computed, visited, axes, preferred_element_type=jnp.float32)


def weighted_sums(chunk: TileChunk, weights: Shaped[Array, '...'], visited: Shaped[Array, '...']) -> Array:
    """Returns, for each position of the computed tiles, the float32 weighted sum of the vectors in the visited tiles.

    The shape is [B, G, t, h, S, K] by query, [B, G, t, S, K] by key.
    """
    batch, visited = matrix_product_axes(chunk, visited)
    summed = tuple(range(len(batch), visited.ndim - 1))
    axes = tuple(range(weights.ndim - len(summed), weights.ndim))
    return jax.lax.dot_general(weights, visited, ((axes, summed), (batch, batch)), preferred_element_type=jnp.float32)


def matrix_product_axes(chunk: TileChunk, visited: Shaped[Array, '...']) -> tuple[tuple[int, ...], Array]:
    """Returns the batch axes and the right operand of a chunk's matrix product;
    it is one large product if tiles visit the same tiles.
    """
    return ((0, 1), visited[:, :, 0]) if chunk.chosen.is_shared else ((0, 1, 2), visited)
