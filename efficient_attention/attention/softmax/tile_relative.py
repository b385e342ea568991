"""The relative term of the logits as tile loops need it: products with the distances of neighbouring tiles, shifted.

A query tile that visits w neighbouring key tiles meets S (w + 1) distances. Its S queries are multiplied with the
table's vectors of those distances, in falling order, and the products of query a are moved left by S - 1 - a: then they
stand at their keys. So the term costs one product more and never a table of [L, M, K] (Dai et al. 2019, arXiv
1901.02860, appendix B, does this on whole sequences).

Axes as in tile_softmax.py; c distances that a query tile meets, n tiles of the table, where tile 0 and the last one
hold nothing but the vectors of its ends, so that any tile beyond them equals them.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.relative import falling, first_position, shift
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.schedule import Pass, TileClass
from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    TileChunk,
    TileMaskInputs,
    into_tiles,
    take_computed,
)
from efficient_attention.attention.softmax.tile_term import Term


class RelativeRead(NamedTuple):
    """What a chunk of query tiles reads: its queries, and the tiles of the table that each query tile meets."""

    q_BGthSK: Array
    r_GhtnSK: Array

    def read_values(self, chunk: TileChunk, _: TileMaskInputs) -> Array:
        """The float32 values over the pairs of the chunk."""
        width = chunk.chosen.visited.shape[-1]
        r_GhtcK = jax.lax.collapse(self.r_GhtnSK, 3, 5).astype(self.q_BGthSK.dtype)
        axes = ((5,), (4,)), ((1, 3, 2), (0, 1, 2))
        values_GhtBSc = jax.lax.dot_general(self.q_BGthSK, r_GhtcK, axes, preferred_element_type=jnp.float32)
        size = self.q_BGthSK.shape[4]
        shifted = shift(values_GhtBSc, size * width).transpose(3, 0, 2, 1, 4, 5)
        return shifted.reshape(*shifted.shape[:-1], width, size)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeBias(Term):
    """The relative term of a pass: its queries, and its table of distances in tiles."""

    q_BGnhSK: Any  # an Array, or what JAX puts in its place while it takes trees of arrays apart
    table_1GhnSK: Any  # float32, so that its gradient is summed in that; falling distances
    diagonal: int = dataclasses.field(metadata={'static': True})  # the table's tile of query tile 0 and key tile 0
    widest: int = dataclasses.field(metadata={'static': True})  # tiles of the table that a query tile meets, at most

    @property
    def has_tile_gradient(self) -> bool:
        """True: the queries', whose gradient is complete after one chunk."""
        return True

    @property
    def splits_by_head(self) -> bool:
        """True: axis 1 holds the key heads."""
        return True

    def read_by(self, chosen: ChosenTiles) -> RelativeRead:
        """The queries of these tiles, and the tiles of the table that each of them meets."""
        return RelativeRead(
            take_computed(chosen, self.q_BGnhSK), self.table_tiles(self.starts(chosen), chosen.visited.shape[-1] + 1)
        )

    def values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """The float32 values over the pairs."""
        if not chunk.by_key:
            return self.read_by(chunk.chosen).read_values(chunk, mask_inputs)
        chosen = chunk.chosen
        width = chosen.visited.shape[-1]
        # The first of w query tiles is nearest to the key tile, and its distances come last.
        starts_t = self.diagonal + chosen.computed_t - first_tiles(chosen) - (width - 1)
        r_GhtnSK = self.table_tiles(starts_t, width + 1).astype(self.q_BGnhSK.dtype)
        r_GhtwcK = jnp.concatenate([r_GhtnSK[:, :, :, :-1], r_GhtnSK[:, :, :, 1:]], axis=4)[:, :, :, ::-1]
        q_BGtwhSK = chunk.queries(self.q_BGnhSK)
        if chosen.is_shared:
            shared = ((5,), (5,)), ((1, 3, 2), (0, 1, 3))
            values_GhwBStc = jax.lax.dot_general(
                q_BGtwhSK[:, :, 0], r_GhtwcK, shared, preferred_element_type=jnp.float32
            )
            return shift(values_GhwBStc.swapaxes(4, 5), chunk.size).transpose(3, 0, 4, 6, 2, 1, 5)
        axes = ((6,), (5,)), ((1, 4, 2, 3), (0, 1, 2, 3))
        values_GhtwBSc = jax.lax.dot_general(q_BGtwhSK, r_GhtwcK, axes, preferred_element_type=jnp.float32)
        return shift(values_GhtwBSc, chunk.size).transpose(4, 0, 2, 6, 3, 1, 5)

    def starts(self, chosen: ChosenTiles) -> Array:
        """int [t]: the first tile of the table that each query tile meets."""
        return self.diagonal - chosen.computed_t + first_tiles(chosen)

    def table_tiles(self, starts_t: Array, count: int) -> Array:
        """`count` tiles of the table from each start, [G, h, t, count, S, K]; beyond its ends the tiles there."""
        places = jnp.clip(starts_t[:, None] + jnp.arange(count)[None], 0, self.table_1GhnSK.shape[3] - 1)
        return self.table_1GhnSK.at[0, :, :, places].get(mode='promise_in_bounds').transpose(2, 3, 0, 1, 4, 5)

    def start(self) -> Array:
        """The table's gradient before the first chunk: zeros, with room for tiles beyond both ends."""
        shape = list(self.table_1GhnSK.shape[1:])
        shape[2] += 2 * self.widest
        return jnp.zeros(shape, jnp.float32)

    def collect(self, total_GhnSK: Array, chosen: ChosenTiles, gradient: RelativeRead) -> tuple[Array, list[Array]]:
        """The table's gradient with that of a chunk, added one query tile after another, and that of its queries."""
        count, last = gradient.r_GhtnSK.shape[3], total_GhnSK.shape[2] - self.widest
        places = jnp.clip(self.starts(chosen) + self.widest, 0, last)

        def add(tile: Shaped[Array, '...'], total: Shaped[Array, '...']) -> Array:
            added = jax.lax.dynamic_index_in_dim(gradient.r_GhtnSK, tile, 2, keepdims=False)
            there = jax.lax.dynamic_slice_in_dim(total, places[tile], count, 2)
            return jax.lax.dynamic_update_slice_in_dim(total, there + added, places[tile], 2)

        total_GhnSK = jax.lax.fori_loop(0, len(chosen.computed_t), add, total_GhnSK)
        return total_GhnSK, [jnp.moveaxis(gradient.q_BGthSK, 2, 0)]

    def join(self, total_GhnSK: Array, arrays: list[Array]) -> 'RelativeBias':
        """The gradient of the term, from the table's and from that of the queries of all tiles but the empty one."""
        dq = jnp.moveaxis(jnp.concatenate([arrays[0], jnp.zeros_like(arrays[0][:1])]), 0, 2)
        low, middle, high = jnp.split(total_GhnSK, (self.widest, total_GhnSK.shape[2] - self.widest), axis=2)
        middle = middle.at[:, :, 0].add(low.sum(axis=2)).at[:, :, -1].add(high.sum(axis=2))
        return dataclasses.replace(self, q_BGnhSK=dq, table_1GhnSK=middle[None])


def first_tiles(chosen: ChosenTiles) -> Array:
    """int [t]: the first tile that each computed tile visits; [] where they share their list."""
    return jnp.asarray(chosen.visited[0] if chosen.is_shared else chosen.visited[0, :, 0], jnp.int32)


def make_relative_bias(request: Request, heads_H: np.ndarray, tile_pass: Pass) -> RelativeBias | None:
    """The relative term of the request's heads with these numbers, in tiles; None without one.

    Raises:
        NotImplementedError: positions that are not one after another and known, or a pattern whose tiles are not.
    """
    relative, groups = request.relative, request.key.shape[2]
    if relative is None:
        return None
    offset = check_in_order(request, tile_pass)
    q_BLHK = relative.query[:, :, heads_H] * jnp.asarray(1.0 / math.sqrt(relative.query.shape[-1]), request.query.dtype)
    batch, queries, _, width = q_BLHK.shape
    q_BGnhSK = into_tiles(q_BLHK.reshape(batch, queries, groups, -1, width), tile_pass.query_listing_L, tile_pass.size)
    distances, size = relative.table.shape[0], tile_pass.size
    # Tile `diagonal` begins at distance offset + S - 1; tile 0 lies wholly beyond the table's last distance.
    diagonal = -(-(relative.first + distances - 1 - offset) // size)
    top = offset + size - 1 + size * diagonal
    tiles = 1 + -(-(top - relative.first) // size)
    falling_cHK = falling(relative.table[:, heads_H].astype(jnp.float32), top - relative.first, tiles * size)
    table_1GhnSK = falling_cHK.reshape(1, tiles, size, groups, -1, width).transpose(0, 3, 4, 1, 2, 5)
    widest = 1 + max(tile_class.visited_hnw.shape[-1] for tile_class in tile_pass.by_query)
    return RelativeBias(q_BGnhSK.transpose(0, 3, 1, 4, 2, 5), table_1GhnSK, diagonal, widest)


def check_in_order(request: Request, tile_pass: Pass) -> int:
    """The first query's position minus the first key's, where all positions and tiles are one after another."""
    starts = first_position(request.positions.query), first_position(request.positions.key)
    if starts[0] is None or starts[1] is None:
        raise NotImplementedError('blocked has relative attention for known positions that rise by 1 alone')
    listings = tile_pass.query_listing_L, tile_pass.key_listing_M
    is_listed = all((np.diff(listing) == 1).all() for listing in listings)
    query_tiles, key_tiles = (-(-len(listing) // tile_pass.size) for listing in listings)
    is_run = [visits_neighbours(tile_class, key_tiles) for tile_class in tile_pass.by_query] + [
        visits_neighbours(tile_class, query_tiles) for tile_class in tile_pass.by_key
    ]
    if not is_listed or not all(is_run):
        raise NotImplementedError(
            f'blocked has relative attention for patterns whose tiles are neighbours, such as causal & window(w); '
            f'not for {request.mechanism}'
        )
    return starts[0] - starts[1]


def visits_neighbours(tile_class: TileClass, empty: int) -> bool:
    """Whether each tile visits tiles one after another, but for `empty` ones at the end, and the same for all heads."""
    if len(tile_class.visited_hnw) > 1:
        return False
    places = tile_class.visited_hnw[0] - tile_class.visited_hnw[0, :, :1]
    return bool(((places == np.arange(places.shape[1])) | (tile_class.visited_hnw[0] == empty)).all())
