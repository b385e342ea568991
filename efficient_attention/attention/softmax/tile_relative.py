"""Computes the relative term of the logits for loops over tiles: multiplies a tile's queries only with the vectors of
the few distances in this tile.

A query tile that visits w neighbouring key tiles needs S (w + 1) distances. Its S queries are multiplied with the
table's vectors of those distances, in falling order. The products of query a are then moved left by S - 1 - a, which
aligns them with their keys. The term thus costs one additional product and never builds a table of [L, M, K] (Dai et
al. 2019, arXiv 1901.02860, appendix B, does this on whole sequences).

Axes as in tile_softmax.py; c distances of a query tile, n tiles of the table. Tile 0 and the last tile of the table
repeat the vectors at its ends, so any tile beyond them equals them.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.relative import consecutive_start, descending_table_rows, relative_shift
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.logit_term import LogitTerm
from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    TileChunk,
    TileMaskInputs,
    split_into_tiles,
    take_computed_tiles,
)
from efficient_attention.attention.softmax.tile_schedule import TileClass, TilePass


class RelativeChunk(NamedTuple):
    """The arrays of the relative term that a chunk reads: its queries,
    and for each query tile the needed tiles of the distance table.
    """

    q_BGthSK: Array
    r_GhtnSK: Array

    def read_values(self, chunk: TileChunk, _: TileMaskInputs) -> Array:
        """Returns the float32 values of the relative term over a chunk's query-key pairs."""
        width = chunk.chosen.visited.shape[-1]
        r_GhtcK = jax.lax.collapse(self.r_GhtnSK, 3, 5).astype(self.q_BGthSK.dtype)
        axes = ((5,), (4,)), ((1, 3, 2), (0, 1, 2))
        values_GhtBSc = jax.lax.dot_general(self.q_BGthSK, r_GhtcK, axes, preferred_element_type=jnp.float32)
        size = self.q_BGthSK.shape[4]
        shifted = relative_shift(values_GhtBSc, size * width).transpose(3, 0, 2, 1, 4, 5)
        return shifted.reshape(*shifted.shape[:-1], width, size)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeBias(LogitTerm):
    """The relative term of the logits, for loops over tiles: its queries and its table of distance vectors, each cut
    into tiles.
    """

    q_BGnhSK: Any  # an Array, or a placeholder while JAX flattens trees of arrays
    table_1GhnSK: Any  # rows in descending order of distance; the table and its gradient are float32
    # index of the tile of the distance table that query tile 0 reads for key tile 0
    diagonal: int = dataclasses.field(metadata={'static': True})
    widest: int = dataclasses.field(metadata={'static': True})  # largest number of table tiles that a query tile reads

    @property
    def has_tile_gradient(self) -> bool:
        """True, because one chunk computes the complete gradient of a query tile's vectors."""
        return True

    @property
    def splits_by_head(self) -> bool:
        """True, because axis 1 of the relative term's arrays is the axis of key heads."""
        return True

    def select_for_chunk(self, chosen: ChosenTiles) -> RelativeChunk:
        """Returns the queries of these tiles, and the tiles of the distance table that each query tile reads."""
        return RelativeChunk(
            take_computed_tiles(chosen, self.q_BGnhSK),
            self.table_tiles(self.first_table_tiles(chosen), chosen.visited.shape[-1] + 1),
        )

    def chunk_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns the float32 values of the relative term over a chunk's query-key pairs."""
        if not chunk.by_key:
            return self.select_for_chunk(chunk.chosen).read_values(chunk, mask_inputs)
        chosen = chunk.chosen
        width = chosen.visited.shape[-1]
        # The first of the w query tiles is nearest to the key tile, so its distances come last in the descending table.
        starts_t = self.diagonal + chosen.computed_t - first_visited_tiles(chosen) - (width - 1)
        r_GhtnSK = self.table_tiles(starts_t, width + 1).astype(self.q_BGnhSK.dtype)
        r_GhtwcK = jnp.concatenate([r_GhtnSK[:, :, :, :-1], r_GhtnSK[:, :, :, 1:]], axis=4)[:, :, :, ::-1]
        q_BGtwhSK = chunk.select_query_tiles(self.q_BGnhSK)
        if chosen.is_shared:
            shared = ((5,), (5,)), ((1, 3, 2), (0, 1, 3))
            values_GhwBStc = jax.lax.dot_general(
                q_BGtwhSK[:, :, 0], r_GhtwcK, shared, preferred_element_type=jnp.float32
            )
            return relative_shift(values_GhwBStc.swapaxes(4, 5), chunk.size).transpose(3, 0, 4, 6, 2, 1, 5)
        axes = ((6,), (5,)), ((1, 4, 2, 3), (0, 1, 2, 3))
        values_GhtwBSc = jax.lax.dot_general(q_BGtwhSK, r_GhtwcK, axes, preferred_element_type=jnp.float32)
        return relative_shift(values_GhtwBSc, chunk.size).transpose(4, 0, 2, 6, 3, 1, 5)

    def first_table_tiles(self, chosen: ChosenTiles) -> Array:
        """Returns, for each computed query tile, the index of the first tile of the distance table that the query tile
        reads.
        """
        return self.diagonal - chosen.computed_t + first_visited_tiles(chosen)

    def table_tiles(self, starts_t: Array, count: int) -> Array:
        """Returns `count` consecutive tiles of the distance table from each start, [G, h, t, count, S, K];
        indices are clipped to the table.
        """
        places = jnp.clip(starts_t[:, None] + jnp.arange(count)[None], 0, self.table_1GhnSK.shape[3] - 1)
        return self.table_1GhnSK.at[0, :, :, places].get(mode='promise_in_bounds').transpose(2, 3, 0, 1, 4, 5)

    def zero_gradient(self) -> Array:
        """Returns zeros as the initial gradient of the distance table,
        with extra tiles beyond both ends of the table.
        """
        shape = list(self.table_1GhnSK.shape[1:])
        shape[2] += 2 * self.widest
        return jnp.zeros(shape, jnp.float32)

    def add_chunk_gradient(
        self, total_GhnSK: Array, chosen: ChosenTiles, gradient: RelativeChunk
    ) -> tuple[Array, list[Array]]:
        """Returns the distance table's gradient with a chunk's gradient added, and the gradient of the chunk's queries.

        The gradients of query tiles are added one after another.
        """
        count, last = gradient.r_GhtnSK.shape[3], total_GhnSK.shape[2] - self.widest
        places = jnp.clip(self.first_table_tiles(chosen) + self.widest, 0, last)

        def add(tile: Shaped[Array, '...'], total: Shaped[Array, '...']) -> Array:
            added = jax.lax.dynamic_index_in_dim(gradient.r_GhtnSK, tile, 2, keepdims=False)
            there = jax.lax.dynamic_slice_in_dim(total, places[tile], count, 2)
            return jax.lax.dynamic_update_slice_in_dim(total, there + added, places[tile], 2)

        total_GhnSK = jax.lax.fori_loop(0, len(chosen.computed_t), add, total_GhnSK)
        return total_GhnSK, [jnp.moveaxis(gradient.q_BGthSK, 2, 0)]

    def finish_gradient(self, total_GhnSK: Array, arrays: list[Array]) -> 'RelativeBias':
        """Returns the gradient of the relative term, from the distance table's gradient
        and the query gradients of all tiles.

        The query gradients lack the empty tile at the end, which is appended here.
        """
        dq = jnp.moveaxis(jnp.concatenate([arrays[0], jnp.zeros_like(arrays[0][:1])]), 0, 2)
        low, middle, high = jnp.split(total_GhnSK, (self.widest, total_GhnSK.shape[2] - self.widest), axis=2)
        middle = middle.at[:, :, 0].add(low.sum(axis=2)).at[:, :, -1].add(high.sum(axis=2))
        return dataclasses.replace(self, q_BGnhSK=dq, table_1GhnSK=middle[None])


def first_visited_tiles(chosen: ChosenTiles) -> Array:
    """Returns, for each of t computed tiles, the number of the first tile that it visits; a single number if all
    computed tiles visit the same tiles.
    """
    return jnp.asarray(chosen.visited[0] if chosen.is_shared else chosen.visited[0, :, 0], jnp.int32)


def make_relative_bias(request: Request, heads_H: np.ndarray, tile_pass: TilePass) -> RelativeBias | None:
    """Returns the relative term of the heads `heads_H`, cut into tiles; None if the request has no relative term.

    Raises:
        NotImplementedError: positions are not consecutive and known at trace time, or a tile's visited tiles are not
            consecutive.
    """
    relative, groups = request.relative, request.key.shape[2]
    if relative is None:
        return None
    offset = consecutive_offset(request, tile_pass)
    q_BLHK = relative.query[:, :, heads_H] * jnp.asarray(1.0 / math.sqrt(relative.query.shape[-1]), request.query.dtype)
    batch, queries, _, width = q_BLHK.shape
    q_BGnhSK = split_into_tiles(
        q_BLHK.reshape(batch, queries, groups, -1, width), tile_pass.query_listing_L, tile_pass.size
    )
    distances, size = relative.table.shape[0], tile_pass.size
    # Table tile `diagonal` begins at distance offset + S - 1. Tile 0 holds only distances beyond the table's last one.
    diagonal = -(-(relative.first + distances - 1 - offset) // size)
    top = offset + size - 1 + size * diagonal
    tiles = 1 + -(-(top - relative.first) // size)
    falling_cHK = descending_table_rows(
        relative.table[:, heads_H].astype(jnp.float32), top - relative.first, tiles * size
    )
    table_1GhnSK = falling_cHK.reshape(1, tiles, size, groups, -1, width).transpose(0, 3, 4, 1, 2, 5)
    widest = 1 + max(tile_class.visited_Nhnw.shape[-1] for tile_class in tile_pass.by_query)
    return RelativeBias(q_BGnhSK.transpose(0, 3, 1, 4, 2, 5), table_1GhnSK, diagonal, widest)


def consecutive_offset(request: Request, tile_pass: TilePass) -> int:
    """Returns the first query's position minus the first key's position;
    raises NotImplementedError unless positions and tiles are consecutive.
    """
    starts = consecutive_start(request.positions.query), consecutive_start(request.positions.key)
    if starts[0] is None or starts[1] is None:
        raise NotImplementedError('blocked has relative attention only for known positions that rise by 1')
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
    """Returns whether each tile of a class visits consecutive tiles, the same for all heads; padding at the end, with
    the index `empty`, is ignored.
    """
    if tile_class.visited_Nhnw.shape[:2] != (1, 1):
        return False
    visited_nw = tile_class.visited_Nhnw[0, 0]
    places = visited_nw - visited_nw[:, :1]
    return bool(((places == np.arange(places.shape[1])) | (visited_nw == empty)).all())
