"""Computes induced attention in time and memory linear in the length:
the learned points read keys and values once for all queries.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import undivided_softmax
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.logits.definition import dot_logits
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import (
    check_single_text_rows,
    mask_queries_without_keys,
    repeat_key_heads,
    valid_keys,
)
from efficient_attention.attention.slot_softmax import attend_tokens_to_slots


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of induced attention; supports padding, cross-attention and grouped heads."""
    check_single_text_rows(request, dropout_on_weights=request.dropout is not None)
    out_BLHK = attend_tokens_to_slots(request.query, *inducing_point_means(request))
    return mask_queries_without_keys(out_BLHK, request).astype(request.query.dtype), None


def compress_keys_values(request: Request) -> tuple[Float[Array, 'B P H K'], Float[Array, 'B P H K']]:
    """Returns the compressed keys and values of induced attention: each learned point's weighted mean of all keys, and
    its weighted mean of all values.
    """
    keys_BHPK, values_BHPK = inducing_point_means(request)
    return keys_BHPK.swapaxes(1, 2), values_BHPK.swapaxes(1, 2)


def inducing_point_means(request: Request) -> tuple[Float[Array, 'B H P K'], Float[Array, 'B H P K']]:
    """Returns the weighted means of keys and of values that each inducing point reads,
    [B, H, P, K], in the keys' dtype.
    """
    dtype = request.key.dtype
    points_HPK, valid_BM = request.learned_operand('points').astype(dtype), valid_keys(request)
    batch, heads = len(request.key), len(points_HPK)
    points_BPHK = jnp.broadcast_to(points_HPK.swapaxes(0, 1)[None], (batch, *points_HPK.swapaxes(0, 1).shape))
    key_BMHK, value_BMHK = (repeat_key_heads(x, heads) for x in (request.key, request.value))
    is_there = None if valid_BM is None else valid_BM[:, None, None]
    read_BHPM, total_BHP1 = undivided_softmax(dot_logits(points_BPHK, key_BMHK, dtype, None), is_there)
    read_BHPM = read_BHPM.astype(dtype)
    keys_BHPK, values_BHPK = (float32_einsum('BHPM,BMHK->BHPK', read_BHPM, x) for x in (key_BMHK, value_BMHK))
    return (keys_BHPK / total_BHP1).astype(dtype), (values_BHPK / total_BHP1).astype(dtype)
