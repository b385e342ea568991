"""Computes causal linear attention for all chunks at once, which is used on accelerators for rows that are not packed.

Keys up to the end of a chunk set the chunk's scale: the largest log of each feature. So later keys change the scale of
no earlier chunk. The running maxima of these logs come first. Then the features and key sums of all chunks are computed
once, and an associative scan adds up the sums of earlier chunks in float32. For bfloat16 inputs, products have
bfloat16 operands, float32 sums and bfloat16 results. Other inputs are computed in float32, because long sums leave the
range of float16.

The backward passes are defined here (custom_vjp). They read the rounded features instead of their logarithms. The
gradient of the scan is the same scan in the opposite direction.

Memory traffic dominates the time. So the code is arranged for the fusions of XLA's compiler for GPUs. Comments say what
XLA would write or copy without each arrangement.

Axes: n chunks of C positions, G key heads with h query heads each, R features, K head width; V = K + 1:
the values, and a column of ones whose sum is the denominator.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Shaped

from efficient_attention.attention.features.chunk_attention import Outputs
from efficient_attention.attention.features.chunks import PositionChunk, cut_queries
from efficient_attention.attention.features.feature_map import FeatureMap, mask_keys
from efficient_attention.attention.features.key_sums import KeySums

product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


class QuerySums(NamedTuple):
    """For each query, the sum of (query . key) times value over the keys that it reads, [n, B, G, h, C, V].

    `near_nBGhCV` sums over the keys of the query's own chunk up to the query, `far_nBGhCV` over all earlier chunks.
    """

    near_nBGhCV: Array
    far_nBGhCV: Array

    def denominators(self) -> Float[Array, 'n B G h C']:
        """Returns the float32 denominators of attention, the last columns."""
        # Without the barrier, XLA would read all columns here.
        near, far = jax.lax.optimization_barrier((self.near_nBGhCV[..., -1], self.far_nBGhCV[..., -1]))
        return near + far

    def divided(self, inverse_nBGhC: Float[Array, 'n B G h C']) -> Float[Array, 'n B G h C K']:
        """Returns float32 outputs, from 1 / denominator."""
        return (self.near_nBGhCV + self.far_nBGhCV)[..., :-1] * inverse_nBGhC[..., None]


def sum_all_chunks(
    before: KeySums, chunks: PositionChunk, features: FeatureMap
) -> tuple[tuple[QuerySums, Array], KeySums]:
    """Returns (the sums of each query in bfloat16 or float32, the logarithms of the queries' scales [n, B, G, h, C]),
    and the key sums after the last chunk.

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

    def log_keys(key_nBGCK: Array) -> Array:
        logs_nBGCR = map_to_log_features(key_nBGCK)
        return logs_nBGCR if chunks.valid_BC is None else jax.vmap(mask_keys)(logs_nBGCR, chunks.valid_BC)

    def read_for_maximum(x: Shaped[Array, '...']) -> Array:
        """Returns `x`, behind a barrier if its logarithms need no matrix product. Then XLA computes these logarithms
        again for their maximum, instead of writing them to memory in float32.
        """
        return jax.lax.optimization_barrier(jax.lax.stop_gradient(x)) if features.projection is None else x

    highest_nBGR = jax.lax.stop_gradient(log_keys(read_for_maximum(chunks.key_BGCK)).max(axis=3))
    highest_mBGR = jax.lax.cummax(jnp.concatenate([jax.lax.stop_gradient(before.stabiliser_BGR)[None], highest_nBGR]))
    stabiliser_nBGR, shrink_nBGR = highest_mBGR[1:], jnp.exp(highest_mBGR[:-1] - highest_mBGR[1:])
    key_nBGCR = rounded_features(log_keys(chunks.key_BGCK), stabiliser_nBGR[:, :, :, None], dtype)
    shift_nBG11R = stabiliser_nBGR[:, :, :, None, None]
    again_nBGhCR = map_to_log_features(read_for_maximum(chunks.query_BGhCK)) + shift_nBG11R
    scale_nBGhC = jax.lax.stop_gradient(again_nBGhCR.max(axis=-1))
    query_logs_nBGhCR = map_to_log_features(chunks.query_BGhCK) + shift_nBG11R
    query_nBGhCR = rounded_features(query_logs_nBGhCR, scale_nBGhC[..., None], dtype)
    value_nBGCV = jnp.concatenate([chunks.value_BGCK, jnp.ones_like(chunks.value_BGCK[..., :1])], axis=-1)
    # If a row has no key yet, masked keys get the feature 1. So their values are set to 0; values have fewer numbers
    # than features.
    if chunks.valid_BC is not None:
        value_nBGCV = jnp.where(chunks.valid_BC[:, :, None, :, None], value_nBGCV, jnp.zeros((), dtype))
    start_BGRV = jnp.concatenate([before.sums_BGRK, before.normaliser_BGR[..., None]], axis=-1)
    sums, last_BGRV = causal_products(query_nBGhCR, key_nBGCR, value_nBGCV, start_BGRV, shrink_nBGR)
    return (sums, scale_nBGhC), KeySums(last_BGRV[..., :-1], last_BGRV[..., -1], stabiliser_nBGR[-1])


def sum_gradients(outputs: Outputs, gradients: Outputs, inverse_nBGhC: Float[Array, 'n B G h C']) -> QuerySums:
    """Returns the gradients of sums, from outputs [B, L, H, K] and the gradients of outputs and log-sum-exps."""
    out_BLHK, (dout_BLHK, dlse_BLH) = outputs[0], gradients
    dout_BLHK = dout_BLHK.astype(jnp.float32)
    # As in other fused backward passes, the rounded outputs are read instead of the sums.
    dlog_BLH = dlse_BLH - (dout_BLHK * out_BLHK.astype(jnp.float32)).sum(axis=-1)
    dboth_BLHV = jnp.concatenate([dout_BLHK, dlog_BLH[..., None]], axis=-1)
    dboth_nBGhCV = cut_queries(dboth_BLHV, inverse_nBGhC.shape[2], inverse_nBGhC.shape[4])
    dboth_nBGhCV *= inverse_nBGhC[..., None]
    return QuerySums(dboth_nBGhCV, dboth_nBGhCV)


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


def keep_earlier(pairs_nBGhCc: Array) -> Array:
    """Returns `pairs_nBGhCc` with zeros where the key comes after the query.

    XLA fuses the multiplication by a constant mask into the next matrix product. It would write the result of
    `jnp.tril` to memory.
    """
    size = pairs_nBGhCc.shape[-1]
    return pairs_nBGhCc * np.tril(np.ones((*[1] * (pairs_nBGhCc.ndim - 2), size, size), pairs_nBGhCc.dtype))


def read_again(operand: Shaped[Array, '...']) -> Array:
    """Returns `operand` behind a barrier, for the second of two products that read it.

    Without the barrier, XLA would merge the two products, and first copy their other operands into one array.
    """
    return jax.lax.optimization_barrier(operand)


@jax.custom_vjp
def causal_products(
    query_nBGhCR: Array, key_nBGCR: Array, value_nBGCV: Array, start_BGRV: Array, shrink_nBGR: Array
) -> tuple[QuerySums, Array]:
    """Returns the sums over the keys up to each query in the dtype of the features, and the float32 key sums after the
    last chunk.

    The factors `shrink_nBGR` convert sums from the scale of the previous chunk to a chunk's scale; the first factors
    convert `start_BGRV`. Factors get no gradient.
    """
    return causal_products_forward(query_nBGhCR, key_nBGCR, value_nBGCV, start_BGRV, shrink_nBGR)[0]


def causal_products_forward(
    query_nBGhCR: Array, key_nBGCR: Array, value_nBGCV: Array, start_BGRV: Array, shrink_nBGR: Array
) -> tuple[tuple[QuerySums, Array], tuple[Array, ...]]:
    """Returns the results of `causal_products`, and the arrays saved for the backward pass."""
    dtype = query_nBGhCR.dtype
    sums_nBGRV = product('nBGCR,nBGCV->nBGRV', key_nBGCR, value_nBGCV)
    sums_nBGRV, last_BGRV = sums_before_each(start_BGRV, sums_nBGRV, shrink_nBGR)
    sums_nBGRV = sums_nBGRV.astype(dtype)
    pairs_nBGhCc = jnp.einsum('nBGhCR,nBGcR->nBGhCc', query_nBGhCR, key_nBGCR)
    near_nBGhCV = product('nBGhCc,nBGcV->nBGhCV', keep_earlier(pairs_nBGhCc), value_nBGCV)
    far_nBGhCV = product('nBGhCR,nBGRV->nBGhCV', read_again(query_nBGhCR), sums_nBGRV)
    saved = query_nBGhCR, key_nBGCR, value_nBGCV, sums_nBGRV, pairs_nBGhCc, shrink_nBGR
    return (QuerySums(near_nBGhCV, far_nBGhCV), last_BGRV), saved


def causal_products_backward(saved: tuple[Array, ...], gradients: tuple[QuerySums, Array]) -> tuple[Array, ...]:
    """Returns the gradients of queries, keys, values and sums, and zeros for factors."""
    query_nBGhCR, key_nBGCR, value_nBGCV, sums_nBGRV, pairs_nBGhCc, shrink_nBGR = saved
    (dsums, dlast_BGRV), dtype = gradients, query_nBGhCR.dtype
    dnear_nBGhCV, dfar_nBGhCV = (x.astype(dtype) for x in dsums)
    dsums_nBGRV = jnp.einsum('nBGhCR,nBGhCV->nBGRV', query_nBGhCR, dfar_nBGhCV)
    ahead_nBGR = jnp.concatenate([jnp.ones_like(shrink_nBGR[:1]), shrink_nBGR[:0:-1]])
    dsums_nBGRV, dlast_BGRV = sums_before_each(dlast_BGRV, dsums_nBGRV[::-1], ahead_nBGR)
    dsums_nBGRV = dsums_nBGRV[::-1].astype(dtype)
    dpairs_nBGhCc = keep_earlier(jnp.einsum('nBGhCV,nBGcV->nBGhCc', dnear_nBGhCV, value_nBGCV))
    dquery_nBGhCR = jnp.einsum('nBGhCc,nBGcR->nBGhCR', dpairs_nBGhCc, key_nBGCR)
    dquery_nBGhCR += jnp.einsum('nBGhCV,nBGRV->nBGhCR', read_again(dfar_nBGhCV), sums_nBGRV)
    dkey_nBGCR = jnp.einsum('nBGhCc,nBGhCR->nBGcR', dpairs_nBGhCc, query_nBGhCR)
    dkey_nBGCR += jnp.einsum('nBGCV,nBGRV->nBGCR', value_nBGCV, dsums_nBGRV)
    # The axes h and C become X. If the product summed over two axes, XLA would write the masked pairs to memory.
    pairs_nBGXc, dnear_nBGXV = (
        x.reshape(*x.shape[:3], -1, x.shape[-1]) for x in (keep_earlier(pairs_nBGhCc), dnear_nBGhCV)
    )
    dvalue_nBGCV = jnp.einsum('nBGXc,nBGXV->nBGcV', pairs_nBGXc, dnear_nBGXV)
    dvalue_nBGCV += jnp.einsum('nBGCR,nBGRV->nBGCV', key_nBGCR, dsums_nBGRV)
    return dquery_nBGhCR, dkey_nBGCR, dvalue_nBGCV, dlast_BGRV * shrink_nBGR[0][..., None], jnp.zeros_like(shrink_nBGR)


causal_products.defvjp(causal_products_forward, causal_products_backward)


def sums_before_each(start_BGRV: Array, sums_nBGRV: Array, shrink_nBGR: Array) -> tuple[Array, Array]:
    """Returns the sums before each chunk, [n, B, G, R, V], on that chunk's scale, and the sums after the last chunk.

    Args:
        start_BGRV: the sums before the first chunk.
        sums_nBGRV: the sums over each chunk alone, on the scale of that chunk.
        shrink_nBGR: factors from the scale of the previous chunk to the scale of each chunk.
    """
    shrink_nBGR1, sums_nBGRV = shrink_nBGR[..., None], sums_nBGRV.astype(jnp.float32)
    added_nBGRV = jnp.concatenate([start_BGRV[None], sums_nBGRV[:-1]])

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], left[1] * right[0] + right[1]

    before_nBGRV = jax.lax.associative_scan(combine, (shrink_nBGR1, shrink_nBGR1 * added_nBGRV))[1]
    return before_nBGRV, before_nBGRV[-1] + sums_nBGRV[-1]
