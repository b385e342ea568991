"""The relative term of the logits as tile loops need it: products with the distances of a row of tiles, then shifted.

A query tile that reads w key tiles in a row meets S (w + 1) distances. Its S queries are multiplied with those rows of
the table, in the order of falling distance, and row a of the result is moved left by S - 1 - a: then the column is the
key. So the term costs one product more and never a table of [L, M, K] (Dai et al. 2019, arXiv 1901.02860, appendix B,
does this on whole sequences).

Axes as in tile_softmax.py; c distances of a row of tiles, n tiles of the table, where tile 0 and the last one hold
nothing but the vectors of its ends, so that any tile beyond them equals them.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.relative import falling, first_position, shift
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.schedule import Pass, RowClass
from efficient_attention.attention.softmax.tile_chunks import ChosenTiles, Chunk, MaskInputs, into_tiles, take_rows
from efficient_attention.attention.softmax.tile_term import Term


class RelativeRows(NamedTuple):
    """What a chunk of query tiles reads: its queries, and the tiles of the table that each of its rows meets."""

    q_BGthSK: Array
    r_GhtnSK: Array

    def of_rows(self, chunk: Chunk, _: MaskInputs) -> Array:
        """Values over the pairs."""
        width = chunk.chosen.lists.shape[-1]
        r_GhtcK = jax.lax.collapse(self.r_GhtnSK, 3, 5).astype(self.q_BGthSK.dtype)
        axes = ((5,), (4,)), ((1, 3, 2), (0, 1, 2))
        products_GhtBSc = jax.lax.dot_general(self.q_BGthSK, r_GhtcK, axes, preferred_element_type=jnp.float32)
        size = self.q_BGthSK.shape[4]
        shifted = shift(products_GhtBSc, size * width).transpose(3, 0, 2, 1, 4, 5)
        return shifted.reshape(*shifted.shape[:-1], width, size)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeBias(Term):
    """The relative term of a pass."""

    q_BGnhSK: Any  # an Array, or what JAX puts in its place while it takes trees of arrays apart
    table_1GhnSK: Any  # float32, so that its gradient is summed in that; rows of falling distance
    diagonal: int = dataclasses.field(metadata={'static': True})  # the table's tile of query tile 0 and key tile 0
    widest: int = dataclasses.field(metadata={'static': True})  # tiles of the table that a row meets, at most

    @property
    def has_row_gradient(self) -> bool:
        """Yes: the queries'."""
        return True

    @property
    def splits_by_head(self) -> bool:
        """True: each key head takes its part of axis 1."""
        return True

    def rows(self, chosen: ChosenTiles) -> RelativeRows:
        """The part that a chunk of query tiles reads."""
        return RelativeRows(
            take_rows(chosen, self.q_BGnhSK), self.table_rows(self.starts(chosen), chosen.lists.shape[-1] + 1)
        )

    def tiles(self, chunk: Chunk, mask_inputs: MaskInputs) -> Array:
        """Values over the pairs."""
        if not chunk.by_key:
            return self.rows(chunk.chosen).of_rows(chunk, mask_inputs)
        chosen = chunk.chosen
        width = chosen.lists.shape[-1]
        # The first of w query tiles is nearest to the key tile, and its distances come last.
        starts_t = self.diagonal + chosen.rows - first_tiles(chosen) - (width - 1)
        r_GhtnSK = self.table_rows(starts_t, width + 1).astype(self.q_BGnhSK.dtype)
        windows = jnp.concatenate([r_GhtnSK[:, :, :, :-1], r_GhtnSK[:, :, :, 1:]], axis=4)[:, :, :, ::-1]
        q_BGtwhSK = chunk.queries(self.q_BGnhSK)
        if chosen.is_shared:
            shared = ((5,), (5,)), ((1, 3, 2), (0, 1, 3))
            products_GhwBStc = jax.lax.dot_general(
                q_BGtwhSK[:, :, 0], windows, shared, preferred_element_type=jnp.float32
            )
            return shift(products_GhwBStc.swapaxes(4, 5), chunk.size).transpose(3, 0, 4, 6, 2, 1, 5)
        axes = ((6,), (5,)), ((1, 4, 2, 3), (0, 1, 2, 3))
        products_GhtwBSc = jax.lax.dot_general(q_BGtwhSK, windows, axes, preferred_element_type=jnp.float32)
        return shift(products_GhtwBSc, chunk.size).transpose(4, 0, 2, 6, 3, 1, 5)

    def starts(self, chosen: ChosenTiles) -> Array:
        """The first tile of the table that each query tile meets, [t]."""
        return self.diagonal - chosen.rows + first_tiles(chosen)

    def table_rows(self, starts_t: Array, count: int) -> Array:
        """`count` tiles of the table from each start, [G, h, t, count, S, K]; beyond its ends the tiles there."""
        places = jnp.clip(starts_t[:, None] + jnp.arange(count)[None], 0, self.table_1GhnSK.shape[3] - 1)
        return self.table_1GhnSK.at[0, :, :, places].get(mode='promise_in_bounds').transpose(2, 3, 0, 1, 4, 5)

    def start(self) -> Array:
        """The table's gradient before the first row, with room for tiles beyond both ends."""
        shape = list(self.table_1GhnSK.shape[1:])
        shape[2] += 2 * self.widest
        return jnp.zeros(shape, jnp.float32)

    def collect(self, total_GhnSK: Array, chosen: ChosenTiles, gradient: RelativeRows) -> tuple[Array, list[Array]]:
        """The table's gradient with that of some rows, added one row after another; the queries' gradients."""
        count, last = gradient.r_GhtnSK.shape[3], total_GhnSK.shape[2] - self.widest
        places = jnp.clip(self.starts(chosen) + self.widest, 0, last)

        def add(row: Array, total: Array) -> Array:
            added = jax.lax.dynamic_index_in_dim(gradient.r_GhtnSK, row, 2, keepdims=False)
            there = jax.lax.dynamic_slice_in_dim(total, places[row], count, 2)
            return jax.lax.dynamic_update_slice_in_dim(total, there + added, places[row], 2)

        total_GhnSK = jax.lax.fori_loop(0, len(chosen.rows), add, total_GhnSK)
        return total_GhnSK, [jnp.moveaxis(gradient.q_BGthSK, 2, 0)]

    def join(self, total_GhnSK: Array, arrays: list[Array]) -> 'RelativeBias':
        """The gradient of the whole from the table's and from all rows, which lack the empty tile."""
        dq = jnp.moveaxis(jnp.concatenate([arrays[0], jnp.zeros_like(arrays[0][:1])]), 0, 2)
        low, middle, high = jnp.split(total_GhnSK, (self.widest, total_GhnSK.shape[2] - self.widest), axis=2)
        middle = middle.at[:, :, 0].add(low.sum(axis=2)).at[:, :, -1].add(high.sum(axis=2))
        return dataclasses.replace(self, q_BGnhSK=dq, table_1GhnSK=middle[None])


def first_tiles(chosen: ChosenTiles) -> Array:
    """The first tile of each row's list [t], or [] where rows share one."""
    return jnp.asarray(chosen.lists[0] if chosen.is_shared else chosen.lists[0, :, 0], jnp.int32)


def make_relative_bias(request: Request, heads: np.ndarray, tile_pass: Pass) -> RelativeBias | None:
    """The request's relative term for `heads`, in tiles; None without one.

    Raises:
        NotImplementedError: positions that are not one after another and known, or a pattern whose tiles are not.
    """
    relative, groups = request.relative, request.key.shape[2]
    if relative is None:
        return None
    offset = check_in_order(request, tile_pass)
    q_BLHK = relative.query[:, :, heads] * jnp.asarray(1.0 / math.sqrt(relative.query.shape[-1]), request.query.dtype)
    batch, queries, _, width = q_BLHK.shape
    q_BGnhSK = into_tiles(q_BLHK.reshape(batch, queries, groups, -1, width), tile_pass.query_listing, tile_pass.size)
    rows, size = relative.table.shape[0], tile_pass.size
    # Tile `diagonal` begins at distance offset + S - 1; tile 0 lies wholly beyond the table's last row.
    diagonal = -(-(relative.first + rows - 1 - offset) // size)
    top = offset + size - 1 + size * diagonal
    tiles = 1 + -(-(top - relative.first) // size)
    falling_cHK = falling(relative.table[:, heads].astype(jnp.float32), top - relative.first, tiles * size)
    table_1GhnSK = falling_cHK.reshape(1, tiles, size, groups, -1, width).transpose(0, 3, 4, 1, 2, 5)
    widest = 1 + max(rows.lists.shape[-1] for rows in tile_pass.by_query)
    return RelativeBias(q_BGnhSK.transpose(0, 3, 1, 4, 2, 5), table_1GhnSK, diagonal, widest)


def check_in_order(request: Request, tile_pass: Pass) -> int:
    """The first query's position minus the first key's, where all positions and tiles are one after another."""
    starts = first_position(request.positions.query), first_position(request.positions.key)
    if starts[0] is None or starts[1] is None:
        raise NotImplementedError('blocked has relative attention for known positions that rise by 1 alone')
    listings = tile_pass.query_listing, tile_pass.key_listing
    is_listed = all((np.diff(listing) == 1).all() for listing in listings)
    query_tiles, key_tiles = (-(-len(listing) // tile_pass.size) for listing in listings)
    runs = [is_run(rows, key_tiles) for rows in tile_pass.by_query] + [
        is_run(rows, query_tiles) for rows in tile_pass.by_key
    ]
    if not is_listed or not all(runs):
        raise NotImplementedError(
            f'blocked has relative attention for patterns whose tiles are neighbours, such as causal & window(w); '
            f'not for {request.mechanism}'
        )
    return starts[0] - starts[1]


def is_run(row_class: RowClass, empty: int) -> bool:
    """Whether each row's tiles are one after another, but for `empty` ones at the end, and the same for all heads."""
    if len(row_class.lists) > 1:
        return False
    places = row_class.lists[0] - row_class.lists[0, :, :1]
    return bool(((places == np.arange(places.shape[1])) | (row_class.lists[0] == empty)).all())
