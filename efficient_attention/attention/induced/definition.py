"""Defines induced attention: a few learned points attend to all keys,
and the queries then attend to the points' results.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import masked_softmax
from efficient_attention.attention.mechanism import Capabilities, LearnedOperand, Mechanism, Requirements
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import (
    check_single_text_rows,
    mask_queries_without_keys,
    repeat_key_heads,
    valid_keys,
)
from efficient_attention.errors import require_at_least

HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class Induced(Mechanism):
    """Induced attention softmax(q (P k)^T / sqrt(K)) P v, where P = softmax(I k^T / sqrt(K))
    and I are learned inducing points.

    Each row of the weights sums to 1. Without positions the output permutes with the tokens. There is no causal form,
    because every point reads the whole row.

    Sources: Lee et al. 2019, arXiv 1810.00825, equation 9 (there two blocks with feed-forward layers); Ma et al. 2021,
    arXiv 2106.01540, section 3, which passes the points' results on to the next layer.

    Args:
        points: number of points I per head.
    """

    name = 'induced'
    requirements = Requirements(positions=False, whole_rows=True)  # each learned point reads all keys of the row
    capabilities = Capabilities(has_dropout=False)  # dropout needs weights per key, which are never computed

    points: int = 64

    def __post_init__(self) -> None:
        require_at_least(1, 'induced points', self.points)

    def learned_operands(self, heads: int, width: int) -> dict[str, LearnedOperand]:
        """Returns the declaration of the learned inducing points [H, P, K]."""
        return {'points': LearnedOperand((heads, self.points, width), 1.0)}


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns the dense attention weights of induced attention: each query's weights
    of the points times each point's weights of the keys.
    """
    check_single_text_rows(request, dropout_on_weights=request.dropout is not None)
    heads, width = request.query.shape[2:]
    scale, valid_BM = 1.0 / math.sqrt(width), valid_keys(request)
    key_BMHK = repeat_key_heads(request.key, heads).astype(jnp.float32)
    everywhere = jnp.ones((1, 1, 1, 1), bool)
    allowed = everywhere if valid_BM is None else valid_BM[:, None, None]
    to_points_BHPM = jnp.einsum(
        'HPK,BMHK->BHPM', request.learned_operand('points') * scale, key_BMHK, precision=HIGHEST
    )
    read_BHPM, _ = masked_softmax(to_points_BHPM, allowed)
    points_BHPK = jnp.einsum('BHPM,BMHK->BHPK', read_BHPM, key_BMHK, precision=HIGHEST)
    query_BLHK = request.query.astype(jnp.float32) * scale
    logits_BHLP = jnp.einsum('BLHK,BHPK->BHLP', query_BLHK, points_BHPK, precision=HIGHEST)
    reading_BHLP, _ = masked_softmax(logits_BHLP, everywhere)
    weights_BHLM = jnp.einsum('BHLP,BHPM->BHLM', reading_BHLP, read_BHPM, precision=HIGHEST)
    return mask_queries_without_keys(weights_BHLM.swapaxes(1, 2), request).swapaxes(1, 2), None


def multiply_adds(mechanism: Induced, length: int, heads: int, width: int) -> int:
    """Returns induced attention's multiply-adds for one row: products of learned points with keys, mixtures of keys and
    values, and products of queries with points.

    The mix of the points' values for each query is included.
    """
    return 5 * heads * length * mechanism.points * width
