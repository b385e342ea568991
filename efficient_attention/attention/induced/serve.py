"""Induced attention in time and memory linear in the length: points read keys and values at once."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.logits.definition import dot_logits
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import combine_values, softmax_over
from efficient_attention.attention.whole_rows import check_whole_rows, finish, per_head, valid_keys


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """The output of `Induced`, with padding, cross attention and grouped heads."""
    check_whole_rows(request, dropout_on_weights=request.dropout is not None)
    dtype, (keys_BPHK, values_BPHK) = request.query.dtype, slots(request)
    weights_BHLP = softmax_over(dot_logits(request.query, keys_BPHK, dtype, None), None)
    out_BLHK = combine_values(weights_BHLP, values_BPHK, dtype, None)
    return finish(out_BLHK, request).astype(dtype), None


def slots(request: Request) -> tuple[Float[Array, 'B P H K'], Float[Array, 'B P H K']]:
    """The means of keys and of values that the points read: see `Room.slots`."""
    dtype, width = request.key.dtype, request.key.shape[3]
    points_HPK, valid_BM = request.operand('points').astype(dtype), valid_keys(request)
    batch, heads = len(request.key), len(points_HPK)
    points_BPHK = jnp.broadcast_to(points_HPK.swapaxes(0, 1)[None], (batch, *points_HPK.swapaxes(0, 1).shape))
    key_BMHK, value_BMHK = (per_head(x, heads) for x in (request.key, request.value))
    is_there = None if valid_BM is None else valid_BM[:, None, None]
    read_BHPM = softmax_over(dot_logits(points_BPHK, key_BMHK, dtype, None), is_there)
    both_BMHX = jnp.concatenate([key_BMHK, value_BMHK], axis=-1)  # one product over the keys
    both_BPHX = float32_einsum('BHPM,BMHX->BPHX', read_BHPM.astype(dtype), both_BMHX).astype(dtype)
    return both_BPHX[..., :width], both_BPHX[..., width:]
