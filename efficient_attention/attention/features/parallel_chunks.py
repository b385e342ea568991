"""Computes causal linear attention for all chunks at once, which is used on accelerators for rows that are not packed.

Keys up to the end of a chunk set the chunk's scale: the largest log of each feature. So later keys change the scale of
no earlier chunk. The running maxima of these logs come first. Then the features and key sums of all chunks are computed
once, and an associative scan adds up the sums of earlier chunks. For bfloat16 inputs, products have bfloat16
operands and float32 sums. Other inputs are computed in float32, because long sums leave the range of float16.

The backward passes are defined here (custom_vjp). They read the rounded features instead of their logarithms. The
gradient of the scan is the same scan in the opposite direction.

Axes: n chunks of C positions, G key heads with h query heads each, R features, K head width; V = K + 1:
the values, and a column of ones whose sum is the denominator.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.features.chunk_attention import Outputs
from efficient_attention.attention.features.chunks import PositionChunk
from efficient_attention.attention.features.feature_map import FeatureMap, divide_sums, mask_keys
from efficient_attention.attention.features.key_sums import KeySums

product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def rounded_product(equation: str, left: Shaped[Array, '...'], right: Shaped[Array, '...']) -> Array:
    """Returns an einsum whose result has the dtype of the operands.

    Accelerators sum in float32 and round the sums. A float32 result would have to be rounded afterwards.
    XLA might then merge this product with another product, and write the float32 array to memory.
    """
    return jnp.einsum(equation, left, right)


def attend_all_chunks(before: KeySums, chunks: PositionChunk, features: FeatureMap) -> tuple[KeySums, Outputs]:
    """Returns the key sums after the last chunk, outputs [n, B, G, h, C, K] in bfloat16 or float32, and float32
    log-sum-exps [n, B, G, h, C].

    Args:
        before: the sums over keys before the first chunk.
        chunks: n >= 1 chunks in the dtype of the inputs, without segments. Only values in bfloat16 are computed in
            their own dtype.
        features: the feature map of queries and keys.
    """
    chunks = chunks if chunks.value_BGCK.dtype == jnp.bfloat16 else chunks.in_float32()
    dtype = chunks.value_BGCK.dtype
    # The backward pass reads queries and keys instead of the derivatives of their logarithms.
    map_to_log_features = jax.checkpoint(features.map_to_log_features, prevent_cse=False)
    key_logs_nBGCR = map_to_log_features(chunks.key_BGCK)
    if chunks.valid_BC is not None:
        key_logs_nBGCR = jax.vmap(mask_keys)(key_logs_nBGCR, chunks.valid_BC)
    highest_nBGR = jax.lax.stop_gradient(key_logs_nBGCR.max(axis=3))
    highest_mBGR = jax.lax.cummax(jnp.concatenate([jax.lax.stop_gradient(before.stabiliser_BGR)[None], highest_nBGR]))
    stabiliser_nBGR, shrink_nBGR = highest_mBGR[1:], jnp.exp(highest_mBGR[:-1] - highest_mBGR[1:])
    key_nBGCR = rounded_features(key_logs_nBGCR, stabiliser_nBGR[:, :, :, None], dtype)
    query_logs_nBGhCR = map_to_log_features(chunks.query_BGhCK) + stabiliser_nBGR[:, :, :, None, None]
    scale_nBGhC = jax.lax.stop_gradient(query_logs_nBGhCR.max(axis=-1))
    query_nBGhCR = rounded_features(query_logs_nBGhCR, scale_nBGhC[..., None], dtype)
    value_nBGCV = jnp.concatenate([chunks.value_BGCK, jnp.ones_like(chunks.value_BGCK[..., :1])], axis=-1)
    # If a row has no key yet, masked keys get the feature 1. So their values are set to 0; values have fewer numbers
    # than features.
    if chunks.valid_BC is not None:
        value_nBGCV = jnp.where(chunks.valid_BC[:, :, None, :, None], value_nBGCV, jnp.zeros((), dtype))
    start_BGRV = jnp.concatenate([before.sums_BGRK, before.normaliser_BGR[..., None]], axis=-1)
    operands = query_nBGhCR, key_nBGCR, value_nBGCV, start_BGRV, shrink_nBGR, scale_nBGhC
    (out_nBGhCK, lse_nBGhC), last_BGRV = causal_products(*operands)
    last = KeySums(last_BGRV[..., :-1], last_BGRV[..., -1], stabiliser_nBGR[-1])
    return last, (out_nBGhCK, lse_nBGhC)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rounded_features(logs: Shaped[Array, '...'], stabiliser: Shaped[Array, '...'], dtype: jnp.dtype) -> Array:
    """Returns features divided by exp(stabiliser) and rounded to a dtype; the stabiliser gets no gradient."""
    return jnp.exp(logs - stabiliser).astype(dtype)


def rounded_features_forward(
    logs: Shaped[Array, '...'], stabiliser: Shaped[Array, '...'], dtype: jnp.dtype
) -> tuple[Array, tuple[Array, Array]]:
    """Returns the rounded features, and the arrays saved for the backward pass."""
    features = rounded_features(logs, stabiliser, dtype)
    return features, (features, stabiliser)


def rounded_features_backward(
    _: jnp.dtype, saved: tuple[Array, Array], dfeatures: Shaped[Array, '...']
) -> tuple[Array, Array]:
    """Returns the gradient of the log features, and zeros as the gradient of the stabiliser."""
    features, stabiliser = saved
    return (dfeatures * features).astype(jnp.float32), jnp.zeros_like(stabiliser)


rounded_features.defvjp(rounded_features_forward, rounded_features_backward)


@jax.custom_vjp
def causal_products(
    query_nBGhCR: Array, key_nBGCR: Array, value_nBGCV: Array, start_BGRV: Array, shrink_nBGR: Array, scale_nBGhC: Array
) -> tuple[Outputs, Array]:
    """Returns causal attention [n, B, G, h, C, K] in the dtype of the features with its log-sum-exps [n, B, G, h, C],
    and the key sums after the last chunk.

    Attention divides sums of (query . key) times value over the keys up to each query, by their last column: the
    sum of query . key.
    The factors `shrink_nBGR` convert sums from the scale of the previous chunk to a chunk's scale; the first factors
    convert `start_BGRV`. `scale_nBGhC` is the logarithm of the scale of the queries. Factors and scales get no
    gradient.
    """
    return causal_products_forward(query_nBGhCR, key_nBGCR, value_nBGCV, start_BGRV, shrink_nBGR, scale_nBGhC)[0]


def causal_products_forward(
    query_nBGhCR: Array, key_nBGCR: Array, value_nBGCV: Array, start_BGRV: Array, shrink_nBGR: Array, scale_nBGhC: Array
) -> tuple[tuple[Outputs, Array], tuple[Array, ...]]:
    """Returns the results of `causal_products`, and the arrays saved for the backward pass."""
    dtype = query_nBGhCR.dtype
    sums_nBGRV = product('nBGCR,nBGCV->nBGRV', key_nBGCR, value_nBGCV)
    sums_nBGRV, last_BGRV = sums_before_each(start_BGRV, sums_nBGRV, shrink_nBGR)
    sums_nBGRV = sums_nBGRV.astype(dtype)
    inside_nBGhCc = jnp.tril(rounded_product('nBGhCR,nBGcR->nBGhCc', query_nBGhCR, key_nBGCR))
    near_nBGhCV = product('nBGhCc,nBGcV->nBGhCV', inside_nBGhCc, value_nBGCV)
    far_nBGhCV = product('nBGhCR,nBGRV->nBGhCV', query_nBGhCR, sums_nBGRV)
    # Without barriers, XLA would read all columns for the denominators, and compute the outputs again for gradients.
    denominators = jax.lax.optimization_barrier((near_nBGhCV[..., -1], far_nBGhCV[..., -1]))
    denominator_nBGhC = denominators[0] + denominators[1]
    out_nBGhCK, lse_nBGhC = divide_sums(near_nBGhCV[..., :-1] + far_nBGhCV[..., :-1], denominator_nBGhC, scale_nBGhC)
    out_nBGhCK = jax.lax.optimization_barrier(out_nBGhCK.astype(dtype))
    inverse_nBGhC = jnp.where(lse_nBGhC > MASKED / 2, 1.0 / denominator_nBGhC, 0.0)
    saved = query_nBGhCR, key_nBGCR, value_nBGCV, sums_nBGRV, inside_nBGhCc, shrink_nBGR, out_nBGhCK, inverse_nBGhC
    return ((out_nBGhCK, lse_nBGhC), last_BGRV), saved


def causal_products_backward(saved: tuple[Array, ...], gradients: tuple[Outputs, Array]) -> tuple[Array, ...]:
    """Returns the gradients of queries, keys, values and sums, and zeros for factors and scales."""
    query_nBGhCR, key_nBGCR, value_nBGCV, sums_nBGRV, inside_nBGhCc, shrink_nBGR, out_nBGhCK, inverse_nBGhC = saved
    ((dout_nBGhCK, dlse_nBGhC), dlast_BGRV), dtype = gradients, query_nBGhCR.dtype
    # The output is rounded here, like in other fused backward passes: the sums are not read again.
    dlog_nBGhC = dlse_nBGhC - (dout_nBGhCK.astype(jnp.float32) * out_nBGhCK.astype(jnp.float32)).sum(axis=-1)
    dboth_nBGhCV = jnp.concatenate([dout_nBGhCK.astype(jnp.float32), dlog_nBGhC[..., None]], axis=-1)
    dboth_nBGhCV = (dboth_nBGhCV * inverse_nBGhC[..., None]).astype(dtype)
    dsums_nBGRV = product('nBGhCR,nBGhCV->nBGRV', query_nBGhCR, dboth_nBGhCV)
    ahead_nBGR = jnp.concatenate([jnp.ones_like(shrink_nBGR[:1]), shrink_nBGR[:0:-1]])
    dsums_nBGRV, dlast_BGRV = sums_before_each(dlast_BGRV, dsums_nBGRV[::-1], ahead_nBGR)
    dsums_nBGRV = dsums_nBGRV[::-1].astype(dtype)
    dinside_nBGhCc = jnp.tril(rounded_product('nBGhCV,nBGcV->nBGhCc', dboth_nBGhCV, value_nBGCV))
    dquery_nBGhCR = rounded_product('nBGhCc,nBGcR->nBGhCR', dinside_nBGhCc, key_nBGCR)
    dquery_nBGhCR += rounded_product('nBGhCV,nBGRV->nBGhCR', dboth_nBGhCV, sums_nBGRV)
    dkey_nBGCR = rounded_product('nBGhCc,nBGhCR->nBGcR', dinside_nBGhCc, query_nBGhCR)
    dkey_nBGCR += rounded_product('nBGCV,nBGRV->nBGCR', value_nBGCV, dsums_nBGRV)
    dvalue_nBGCV = rounded_product('nBGhCc,nBGhCV->nBGcV', inside_nBGhCc, dboth_nBGhCV)
    dvalue_nBGCV += rounded_product('nBGCR,nBGRV->nBGCV', key_nBGCR, dsums_nBGRV)
    dstart_BGRV = dlast_BGRV * shrink_nBGR[0][..., None]
    zeros = jnp.zeros_like(shrink_nBGR), jnp.zeros_like(inverse_nBGhC)
    return dquery_nBGhCR, dkey_nBGCR, dvalue_nBGCV, dstart_BGRV, *zeros


causal_products.defvjp(causal_products_forward, causal_products_backward)


def sums_before_each(start_BGRV: Array, sums_nBGRV: Array, shrink_nBGR: Array) -> tuple[Array, Array]:
    """Returns the sums before each chunk, [n, B, G, R, V], on that chunk's scale, and the sums after the last chunk.

    Args:
        start_BGRV: the sums before the first chunk.
        sums_nBGRV: the sums over each chunk alone, on the scale of that chunk.
        shrink_nBGR: factors from the scale of the previous chunk to the scale of each chunk.
    """
    shrink_nBGR1 = shrink_nBGR[..., None]
    added_nBGRV = jnp.concatenate([start_BGRV[None], sums_nBGRV[:-1]])

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], left[1] * right[0] + right[1]

    before_nBGRV = jax.lax.associative_scan(combine, (shrink_nBGR1, shrink_nBGR1 * added_nBGRV))[1]
    return before_nBGRV, before_nBGRV[-1] + sums_nBGRV[-1]
