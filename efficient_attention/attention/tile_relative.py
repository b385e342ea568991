"""The relative term of the logits as tile loops need it: products with the distances of a row of tiles, then shifted.

A query tile that reads w key tiles in a row meets 64 (w + 1) distances. Its 64 queries are multiplied with those rows
of the table, in the order of falling distance, and row a of the result is moved left by 63 - a: then the column is the
key. So the term costs one product more and never a table of [L, M, K] (Dai et al. 2019, arXiv 1901.02860, appendix B,
does this on whole sequences).

Axes as in tile_softmax.py; c distances of a row of tiles, n tiles of the table, where tile 0 and the last one hold
nothing but the vectors of its ends, so that any tile beyond them equals them.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.request import Request
from efficient_attention.attention.schedule import Pass, RowClass
from efficient_attention.attention.tile_picks import TILE, Chunk, Facts, Pick, into_tiles, pick_own


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeBias:
    """The relative term of a pass, or in a loop that of a chunk of query tiles."""

    q_BGnhSK: Any  # an Array, or what JAX puts in its place while it takes trees of arrays apart
    table_1GhnSK: Any  # rows of falling distance
    diagonal: int = dataclasses.field(metadata={'static': True})  # the table's tile of query tile 0 and key tile 0

    def rows(self, pick: Pick) -> 'RelativeBias':
        """The part that a chunk of query tiles reads."""
        return dataclasses.replace(self, q_BGnhSK=pick_own(pick, self.q_BGnhSK))

    def of_rows(self, chunk: Chunk, _: Facts) -> Array:
        """Values over the pairs of a chunk of query tiles whose rows `self` is."""
        pick = chunk.pick
        width = pick.lists.shape[-1]
        starts_t = self.diagonal - pick.rows + first_tiles(pick)
        r_GhtnSK = self.table_rows(starts_t, width + 1)
        r_GhtcK = r_GhtnSK.reshape(*r_GhtnSK.shape[:3], -1, r_GhtnSK.shape[-1])
        axes = ((5,), (4,)), ((1, 3, 2), (0, 1, 2))
        products_GhtBSc = jax.lax.dot_general(self.q_BGnhSK, r_GhtcK, axes, preferred_element_type=jnp.float32)
        shifted = shift(products_GhtBSc, TILE * width).transpose(3, 0, 2, 1, 4, 5)
        return shifted.reshape(*shifted.shape[:-1], width, TILE)

    def tiles(self, chunk: Chunk, facts: Facts) -> Array:
        """Values over the pairs."""
        if not chunk.by_key:
            return self.rows(chunk.pick).of_rows(chunk, facts)
        pick = chunk.pick
        width = pick.lists.shape[-1]
        # The first of w query tiles is nearest to the key tile, and its distances come last.
        starts_t = self.diagonal + pick.rows - first_tiles(pick) - (width - 1)
        r_GhtnSK = self.table_rows(starts_t, width + 1)
        windows = jnp.concatenate([r_GhtnSK[:, :, :, :-1], r_GhtnSK[:, :, :, 1:]], axis=4)[:, :, :, ::-1]
        q_BGtwhSK = chunk.queries(self.q_BGnhSK)
        if pick.is_shared:
            axes = ((5,), (5,)), ((1, 3, 2), (0, 1, 3))
            products_GhwBStc = jax.lax.dot_general(
                q_BGtwhSK[:, :, 0], windows, axes, preferred_element_type=jnp.float32
            )
            return shift(products_GhwBStc.swapaxes(4, 5), TILE).transpose(3, 0, 4, 6, 2, 1, 5)
        axes = ((6,), (5,)), ((1, 4, 2, 3), (0, 1, 2, 3))
        products_GhtwBSc = jax.lax.dot_general(q_BGtwhSK, windows, axes, preferred_element_type=jnp.float32)
        return shift(products_GhtwBSc, TILE).transpose(4, 0, 2, 6, 3, 1, 5)

    def table_rows(self, starts_t: Array, count: int) -> Array:
        """`count` tiles of the table from each start, [G, h, t, count, S, K]."""
        return table_rows(self.table_1GhnSK, starts_t, count)[0].astype(self.q_BGnhSK.dtype)

    def start(self) -> Array:
        """The gradient that all rows share, before the first."""
        return jnp.zeros_like(self.table_1GhnSK)

    def split(self, gradient: 'RelativeBias') -> tuple[Array, list[Array]]:
        """A chunk's gradient as what all rows share, and what is complete after it, rows first."""
        return gradient.table_1GhnSK, [jnp.moveaxis(gradient.q_BGnhSK, 2, 0)]

    def join(self, total: Array, arrays: list[Array]) -> 'RelativeBias':
        """The gradient of the whole from the sum and from all rows, which lack the empty tile."""
        dq = jnp.moveaxis(jnp.concatenate([arrays[0], jnp.zeros_like(arrays[0][:1])]), 0, 2)
        return dataclasses.replace(self, q_BGnhSK=dq, table_1GhnSK=total)


def first_tiles(pick: Pick) -> Array:
    """The first tile of each row's list [t], or [] where rows share one."""
    return jnp.asarray(pick.lists[0] if pick.is_shared else pick.lists[0, :, 0], jnp.int32)


def table_rows(table_1GhnSK: Array, starts_t: Array, count: int) -> Array:
    """`count` tiles of the table from each start, [1, G, h, t, count, S, K]; beyond its ends the tiles there.

    The gradient adds row after row in their order, without scattering.
    """
    tiles = table_1GhnSK.shape[3]

    @jax.custom_vjp
    def pick(table: Array, starts_t: Array) -> Array:
        places = jnp.clip(starts_t[:, None] + jnp.arange(count)[None], 0, tiles - 1)
        return table.at[:, :, :, places].get(mode='promise_in_bounds')

    def forward(table: Array, starts_t: Array) -> tuple[Array, Array]:
        return pick(table, starts_t), starts_t

    def backward(starts_t: Array, gradient: Array) -> tuple[Array, np.ndarray]:
        places = jnp.clip(starts_t + count, 0, tiles + count)
        shape = (*table_1GhnSK.shape[:3], tiles + 2 * count, *table_1GhnSK.shape[4:])

        def add(row: Array, total: Array) -> Array:
            own = jax.lax.dynamic_index_in_dim(gradient, row, 3, keepdims=False)
            there = jax.lax.dynamic_slice_in_dim(total, places[row], count, 3)
            return jax.lax.dynamic_update_slice_in_dim(total, there + own, places[row], 3)

        total = jax.lax.fori_loop(0, len(starts_t), add, jnp.zeros(shape, gradient.dtype))
        low, own, high = jnp.split(total, (count, count + tiles), axis=3)
        own = own.at[:, :, :, 0].add(low.sum(axis=3)).at[:, :, :, -1].add(high.sum(axis=3))
        return own, np.zeros(starts_t.shape, jax.dtypes.float0)

    pick.defvjp(forward, backward)
    return pick(table_1GhnSK, starts_t)


def shift(products: Array, columns: int) -> Array:
    """Of [..., S, c] the first `columns` of each row a after it was moved left by S - 1 - a; c = columns + S."""
    lead, width = products.shape[:-2], products.shape[-1]
    flat = products.reshape(*lead, TILE * width)
    # In a row of c - 1 every entry stands one place further left than in the row before.
    return flat[..., TILE - 1 : TILE * width - 1].reshape(*lead, TILE, width - 1)[..., :columns]


def make_relative_bias(request: Request, heads: np.ndarray, own: Pass) -> RelativeBias | None:
    """The request's relative term for `heads`, in tiles; None without one.

    Raises:
        NotImplementedError: positions that are not one after another and known, or a pattern whose tiles are not.
    """
    relative, groups = request.relative, request.key.shape[2]
    if relative is None:
        return None
    offset = check_in_order(request, own)
    q_BLHK = relative.query[:, :, heads] * jnp.asarray(1.0 / math.sqrt(relative.query.shape[-1]), request.query.dtype)
    batch, queries, _, width = q_BLHK.shape
    q_BGnhSK = into_tiles(q_BLHK.reshape(batch, queries, groups, -1, width), own.query_listing)
    rows = relative.table.shape[0]
    # Tile `diagonal` begins at distance offset + S - 1; tile 0 lies wholly beyond the table's last row.
    diagonal = -(-(relative.first + rows - 1 - offset) // TILE)
    top = offset + TILE - 1 + TILE * diagonal
    tiles = 1 + -(-(top - relative.first) // TILE)
    before = top - relative.first - (rows - 1)
    table_PHK = relative.table[:, heads].astype(jnp.float32)  # so that its gradient is summed in float32
    falling = jnp.concatenate(
        [
            jnp.broadcast_to(table_PHK[-1:], (before, *table_PHK.shape[1:])),
            table_PHK[::-1],
            jnp.broadcast_to(table_PHK[:1], (tiles * TILE - rows - before, *table_PHK.shape[1:])),
        ]
    )
    table_1GhnSK = falling.reshape(1, tiles, TILE, groups, -1, width).transpose(0, 3, 4, 1, 2, 5)
    return RelativeBias(q_BGnhSK.transpose(0, 3, 1, 4, 2, 5), table_1GhnSK, diagonal)


def check_in_order(request: Request, own: Pass) -> int:
    """The first query's position minus the first key's, where all positions and tiles are one after another."""
    starts = []
    for positions in (request.query_positions, request.key_positions):
        if not isinstance(positions, np.ndarray) or len(positions) != 1 or (np.diff(positions[0]) != 1).any():
            raise NotImplementedError('blocked has relative attention for known positions that rise by 1 alone')
        starts.append(int(positions[0, 0]))
    listings = own.query_listing, own.key_listing
    is_listed = all((np.diff(listing) == 1).all() for listing in listings)
    query_tiles, key_tiles = (-(-len(listing) // TILE) for listing in listings)
    runs = [is_run(rows, key_tiles) for rows in own.by_query] + [is_run(rows, query_tiles) for rows in own.by_key]
    if not is_listed or not all(runs):
        raise NotImplementedError(
            f'blocked has relative attention for patterns whose tiles are neighbours, such as causal & window(w); '
            f'not for {request.mechanism}'
        )
    return starts[0] - starts[1]


def is_run(own: RowClass, empty: int) -> bool:
    """Whether each row's tiles are one after another, but for `empty` ones at the end, and the same for all heads."""
    if len(own.lists) > 1:
        return False
    places = own.lists[0] - own.lists[0, :, :1]
    return bool(((places == np.arange(places.shape[1])) | (own.lists[0] == empty)).all())
