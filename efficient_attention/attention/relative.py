"""Relative attention: a term of the logits that a query and its distance to the key decide (Transformer-XL).

    logits_ij = (q_i k_j + p_i r_(i - j)) / sqrt(K)

Dai et al. 2019, arXiv 1901.02860, section 3.3 and appendix B: with content vectors e, queries q_i = W_q e_i + u and
p_i = W_q e_i + v, and r_d = W_r sinusoid(d), these are its four terms. `attend` takes the first as its query and the
second, with r, as `relative`. This file holds the argument and the dense term; tile_relative.py the one by tiles.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relative:
    """What `attend` adds to the logits by distance.

    Args:
        query: p [B, L, H, K], scaled by 1 / sqrt(K) inside.
        table: r [P, H, K], one vector a head for each of P distances, query position - key position: `first`,
            `first` + 1, ... A distance beyond either end takes the last vector there, which is the paper's clamping.
        first: the distance of the table's first row.
    """

    query: Array
    table: Array
    first: int = dataclasses.field(default=0, metadata={'static': True})

    def astype(self, dtype: DTypeLike) -> 'Relative':
        """The same with arrays of another dtype."""
        return dataclasses.replace(self, query=self.query.astype(dtype), table=self.table.astype(dtype))


def relative_logits(
    relative: Relative,
    query_positions: Int[Array, 'b L'],
    key_positions: Int[Array, 'b M'],
    precision: jax.lax.Precision | None = None,
) -> Float[Array, 'B H L M']:
    """The term on all pairs, float32; through the products with every row of the table, [B, H, L, P]."""
    q_BLHK = relative.query * jnp.asarray(1.0 / math.sqrt(relative.query.shape[-1]), relative.query.dtype)
    products_BHLP = jnp.einsum(
        'BLHK,PHK->BHLP', q_BLHK, relative.table, precision=precision, preferred_element_type=jnp.float32
    )
    rows_b1LM = distance_rows(relative, query_positions, key_positions)[:, None]
    shape = (*products_BHLP.shape[:3], rows_b1LM.shape[3])
    return jnp.take_along_axis(products_BHLP, jnp.broadcast_to(rows_b1LM, shape), axis=3)


def distance_rows(
    relative: Relative, query_positions: Int[Array, 'b L'], key_positions: Int[Array, 'b M']
) -> Int[Array, 'b L M']:
    """The row of the table that each pair takes."""
    distances = query_positions[:, :, None] - key_positions[:, None, :]
    return jnp.clip(distances - relative.first, 0, relative.table.shape[0] - 1)
