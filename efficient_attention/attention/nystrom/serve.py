"""Nystrom attention in time and memory linear in the length."""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.nystrom.definition import Nystrom, check, means_of, middle
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import softmax_over
from efficient_attention.attention.whole_rows import finish, per_head, valid_keys, without_padding


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """The output of `Nystrom`, with padding, cross attention and grouped heads, computed in float32."""
    check(request)
    mechanism, (heads, width) = of_kind(Nystrom, request.mechanism), request.query.shape[2:]
    means, valid_BM = means_of(request), valid_keys(request)
    query_BLHK = request.query.astype(jnp.float32) / math.sqrt(width)
    key_BMHK, value_BMHK = (per_head(x, heads).astype(jnp.float32) for x in (request.key, request.value))
    is_there = None if valid_BM is None else valid_BM[:, None, None]
    back_BHmM = softmax_over(float32_einsum('BHmK,BMHK->BHmM', means.query_BHmK, key_BMHK), is_there)
    read_BHmK = float32_einsum('BHmM,BMHK->BHmK', back_BHmM, value_BMHK)
    inner_BHmK = float32_einsum('BHmn,BHnK->BHmK', middle(means, mechanism.iterations), read_BHmK)
    logits_BHLm = float32_einsum('BLHK,BHmK->BHLm', query_BLHK, means.key_BHmK)
    has_all = valid_BM is None and request.key.shape[1] >= mechanism.landmarks
    front_BHLm = softmax_over(logits_BHLm, None if has_all else means.has_key_b1m[:, :, None])
    out_BLHK = float32_einsum('BHLm,BHmK->BLHK', front_BHLm, inner_BHmK)
    if mechanism.convolution:
        out_BLHK = out_BLHK + convolved(without_padding(value_BMHK, valid_BM), request.operand('convolution'))
    return finish(out_BLHK, request).astype(request.query.dtype), None


def convolved(value_BLHK: Float[Array, 'B L H K'], kernel_HW: Float[Array, 'H W']) -> Float[Array, 'B L H K']:
    """Sums over neighbours, weighted by their distance, of each head; zeros beyond the row."""
    batch, length, heads, width = value_BLHK.shape
    taps = kernel_HW.shape[1]
    padded_BNHK = jnp.pad(value_BLHK, ((0, 0), (taps // 2, taps // 2), (0, 0), (0, 0)))

    def add(sums_BLHK: Array, number: Int[Array, '']) -> tuple[Array, None]:
        part_BLHK = jax.lax.dynamic_slice_in_dim(padded_BNHK, number, length, axis=1)
        return sums_BLHK + part_BLHK * kernel_HW[:, number][None, None, :, None], None

    return jax.lax.scan(add, jnp.zeros((batch, length, heads, width), jnp.float32), jnp.arange(taps))[0]
