"""Computes Nystrom attention in time and memory linear in the length."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import undivided_softmax
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.nystrom.definition import (
    Nystrom,
    check_request,
    compute_landmarks,
    convolution_block_sizes,
    landmark_inverse,
)
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import mask_queries_without_keys, repeat_key_heads, valid_keys
from efficient_attention.attention.slot_softmax import NO_PAIRS, PairMasks, attend_tokens_to_slots


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of Nystrom attention, computed in float32;
    supports padding, cross-attention and grouped heads.
    """
    check_request(request)
    mechanism, heads = ensure_kind(Nystrom, request.mechanism), request.query.shape[2]
    means, valid_BM = compute_landmarks(request), valid_keys(request)
    key_BMHK, value_BMHK = (repeat_key_heads(x, heads).astype(jnp.float32) for x in (request.key, request.value))
    is_there = None if valid_BM is None else valid_BM[:, None, None]
    logits_BHmM = float32_einsum('BHmK,BMHK->BHmM', means.query_BHmK, key_BMHK)
    back_BHmM, total_BHm1 = undivided_softmax(logits_BHmM, is_there)
    read_BHmK = float32_einsum('BHmM,BMHK->BHmK', back_BHmM, value_BMHK) / total_BHm1
    inner_BHmK = float32_einsum('BHmn,BHnK->BHmK', landmark_inverse(means, mechanism.iterations), read_BHmK)
    has_all = valid_BM is None and request.key.shape[1] >= mechanism.landmarks
    pairs = NO_PAIRS if has_all else PairMasks(means.has_key_b1m[:, :, None])
    out_BLHK = attend_tokens_to_slots(request.query.astype(jnp.float32), means.key_BHmK, inner_BHmK, pairs)
    if mechanism.convolution:
        out_BLHK = out_BLHK + convolve_tokens(value_BMHK, request.learned_operand('convolution'))
    return mask_queries_without_keys(out_BLHK, request).astype(request.query.dtype), None


def convolve_tokens(value_BLHK: Float[Array, 'B L H K'], kernel_HW: Float[Array, 'H W']) -> Float[Array, 'B L H K']:
    """Returns each head's convolution of the values along positions with a learned kernel, with zeros beyond the row.

    A block of outputs is the product of a band matrix, the same for all blocks, and the values that the block reads.
    """
    length, taps = value_BLHK.shape[1], kernel_HW.shape[1]
    rows, blocks = convolution_block_sizes(length, taps)
    behind = (blocks + 1) * rows - length - taps // 2
    padded_BNHK = jnp.pad(value_BLHK, ((0, 0), (taps // 2, behind), (0, 0), (0, 0)))
    padded_BnRHK = padded_BNHK.reshape(-1, blocks + 1, rows, *value_BLHK.shape[2:])
    read_BnNHK = jnp.concatenate([padded_BnRHK[:, :-1], padded_BnRHK[:, 1:, : taps - 1]], axis=2)
    sums_BnRHK = float32_einsum('HRN,BnNHK->BnRHK', kernel_band_matrix(kernel_HW, rows), read_BnNHK)
    return sums_BnRHK.reshape(-1, blocks * rows, *value_BLHK.shape[2:])[:, :length]


def kernel_band_matrix(kernel_HW: Float[Array, 'H W'], rows: int) -> Float[Array, 'H R N']:
    """Returns a band matrix [R, R + W - 1] for each head: row r has the convolution kernel
    from column r on, and zeros elsewhere.

    The kernel followed by R zeros is repeated and cut into rows that are one number shorter. Each row therefore starts
    one place later.
    """
    heads, taps = kernel_HW.shape
    one_HM = jnp.pad(kernel_HW, ((0, 0), (0, rows)))
    flat_HM = jnp.tile(one_HM, (1, rows))[:, : rows * (rows + taps - 1)]
    return flat_HM.reshape(heads, rows, rows + taps - 1)
