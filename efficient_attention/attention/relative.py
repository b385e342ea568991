"""Relative attention: a term of the logits that depends on the query and on its distance
to the key, as in Transformer-XL.

    logits_ij = (q_i k_j + p_i r_(i - j)) / sqrt(K)

Dai et al. 2019, arXiv 1901.02860, section 3.3 and appendix B. With content vectors e, queries q_i = W_q e_i + u and
p_i = W_q e_i + v, and r_d = W_r sinusoid(d), these are the paper's four terms. `attend` takes q as its query, and p and
r as `relative`. This file has the argument and the dense term; softmax/tile_relative.py has the term by tiles.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from efficient_attention.attention.einsum import float32_einsum


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relative:
    """The relative term that `attend` adds to the logits: a second query, and a table with one vector per distance.

    Args:
        query: p [B, L, H, K], scaled by 1 / sqrt(K) inside.
        table: r [P, H, K], one vector per head for each of P distances (query position - key position): `first`,
            `first` + 1, ... A distance beyond either end takes the vector at that end, which is the paper's clamping.
        first: the distance of the table's first row.
    """

    query: Array
    table: Array
    first: int = dataclasses.field(default=0, metadata={'static': True})

    def astype(self, dtype: DTypeLike) -> 'Relative':
        """Returns the relative term with its query and its table in the given dtype."""
        return dataclasses.replace(self, query=self.query.astype(dtype), table=self.table.astype(dtype))


def relative_logits(
    relative: Relative,
    query_positions: Int[Array | np.ndarray, '#B L'],
    key_positions: Int[Array | np.ndarray, '#B M'],
    precision: jax.lax.Precision | None = None,
) -> Float[Array, 'B H L M']:
    """Returns the relative term of the logits for all query-key pairs, in float32.

    The logits come from products [B, H, L, distances]. If positions are known at trace time and rise by 1, each row of
    products is shifted so that it starts at its first
    key. For other positions each pair looks up its entry by distance.
    """
    q_BLHK = relative.query * jnp.asarray(1.0 / math.sqrt(relative.query.shape[-1]), relative.query.dtype)
    starts = consecutive_start(query_positions), consecutive_start(key_positions)
    if starts[0] is None or starts[1] is None:
        products_BHLP = table_products(q_BLHK, relative.table, precision)
        rows_b1LM = table_row_by_distance(relative, jnp.asarray(query_positions), jnp.asarray(key_positions))[:, None]
        shape = (*products_BHLP.shape[:3], rows_b1LM.shape[3])
        return jnp.take_along_axis(products_BHLP, jnp.broadcast_to(rows_b1LM, shape), axis=3)
    queries, keys = query_positions.shape[1], key_positions.shape[1]
    farthest = starts[0] - starts[1] + queries - 1
    table_cHK = descending_table_rows(relative.table, farthest - relative.first, queries + keys)
    return relative_shift(table_products(q_BLHK, table_cHK, precision), keys)


def table_products(q_BLHK: Array, table_PHK: Array, precision: jax.lax.Precision | None) -> Float[Array, 'B H L P']:
    """Returns the float32 products of each query with each vector of the distance table, per head."""
    return float32_einsum('BLHK,PHK->BHLP', q_BLHK, table_PHK, precision)


def consecutive_start(positions_bL: Array | np.ndarray) -> int | None:
    """Returns the first position if all rows have the same positions,
    which rise by 1 and are known at trace time; else None.
    """
    if not isinstance(positions_bL, np.ndarray) or len(positions_bL) != 1 or (np.diff(positions_bL[0]) != 1).any():
        return None
    return int(positions_bL[0, 0])


def descending_table_rows(table_PHK: Array, top: int, count: int) -> Float[Array, 'c H K']:
    """Returns `count` rows of the distance table in descending order, beginning at row `top`. Beyond either end of the
    table, the row at this end repeats.

    The function uses only slices of the table and repeated end rows, so that its gradient consists of sums and slices.
    """
    rows = table_PHK.shape[0]
    places = np.clip(top - np.arange(count), 0, rows - 1)
    above, below = int((places == rows - 1).sum()), int((places == 0).sum())
    shape = table_PHK.shape[1:]
    if rows == 1:
        return jnp.broadcast_to(table_PHK, (count, *shape))
    middle = places[(places > 0) & (places < rows - 1)]
    parts = [jnp.broadcast_to(table_PHK[-1:], (above, *shape))]
    if len(middle):
        parts.append(table_PHK[int(middle[-1]) : int(middle[0]) + 1][::-1])
    parts.append(jnp.broadcast_to(table_PHK[:1], (below, *shape)))
    return jnp.concatenate(parts)


def relative_shift(x: Float[Array, '*lead S c'], columns: int) -> Float[Array, '*lead S {columns}']:
    """Shifts the rows of an array [..., S, c] left, row a by S - 1 - a entries, and returns the first `columns` entries
    of each row. c must be at least `columns` + S.
    """
    lead, rows, width = x.shape[:-2], x.shape[-2], x.shape[-1]
    flat = x.reshape(*lead, rows * width)
    # Rows of c numbers are read as rows of c - 1, so each row shifts one place further left than the row before.
    # Extra rows in front and behind make the gradient a slice of one padded array.
    # On a CPU, this one slice takes a third less time than two paddings.
    flat = jnp.pad(flat, ((0, 0),) * len(lead) + ((width - rows, width - 2),))
    return flat.reshape(*lead, rows + 2, width - 1)[..., 1:-1, :columns]


def table_row_by_distance(
    relative: Relative, query_positions: Int[Array, '#b L'], key_positions: Int[Array, '#b M']
) -> Int[Array, '#b L M']:
    """Returns the row of the distance table for each query-key pair;
    distances beyond the table get its first or last row.
    """
    distances_bLM = query_positions[:, :, None] - key_positions[:, None, :]
    return jnp.clip(distances_bLM - relative.first, 0, relative.table.shape[0] - 1)
