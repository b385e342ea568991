"""Computes noncausal attention with a feature map: all valid keys are summed first, then all queries read the sums.

Values have a column of ones appended, so that one product gives numerator and denominator, forward and backward. The
backward pass is a `jax.custom_vjp`. It needs neither another sum over the keys nor a sum over features: each query's
features may have any scale, so the gradients of their logarithms add up to zero.

Axes: n chunks of C positions, G key heads with h query heads each, R features, K head width; V = K + 1.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.features.chunks import cut_keys, cut_queries, merge_chunks, split_mask_into_chunks
from efficient_attention.attention.features.feature_map import (
    LOWEST_LOG,
    SMALLEST_DENOMINATOR,
    FeatureMap,
    key_features,
    mask_keys,
    query_features,
)


class FeatureOperands(NamedTuple):
    """Queries, keys and values in float32 chunks, and which keys are valid (None means all keys)."""

    query_nBGhCK: Array
    key_nBGCK: Array
    value_nBGCV: Array
    valid_nBC: Array | None


class SavedSums(NamedTuple):
    """Arrays that the forward pass of noncausal linear attention saves for the backward pass.

    `sums_BGVR` are sums over keys of values times features divided by exp(`stabiliser_BGR`). The other arrays are per
    query: the logarithm of its features' scale, its denominator and its output.
    """

    sums_BGVR: Array
    stabiliser_BGR: Array
    scale_nBGhC: Array
    denominator_nBGhC: Array
    out_nBGhCK: Array


def attend_noncausal(
    query_BLHK: Array,
    key_BMGK: Array,
    value_BMGK: Array,
    valid_BM: Array | None,
    features: FeatureMap,
    axis: str | None = None,
) -> Float[Array, 'B L H K']:
    """Returns float32 outputs of queries that read all valid keys. If `axis` is given, they read the keys of all
    devices on this mesh axis.
    """
    (batch, queries), (keys, groups) = query_BLHK.shape[:2], key_BMGK.shape[1:3]
    block = device_tuning().feature_key_block or max(queries, keys)
    size = min(block, keys)
    value_nBGCK = cut_keys(value_BMGK, size)
    operands = FeatureOperands(
        cut_queries(query_BLHK, groups, min(block, queries)),
        cut_keys(key_BMGK, size),
        jnp.concatenate([value_nBGCK, jnp.ones_like(value_nBGCK[..., :1])], axis=-1),
        split_mask_into_chunks(valid_BM, batch, keys, size),
    )
    return merge_chunks(attend_noncausal_chunks(axis, operands, features), queries)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_noncausal_chunks(
    axis: str | None, operands: FeatureOperands, features: FeatureMap
) -> Float[Array, 'n B G h C K']:
    """Returns the outputs of noncausal linear attention in chunks of queries;
    the feature map's own arrays get no gradient.
    """
    return forward(axis, operands, features)[0]


def forward(axis: str | None, operands: FeatureOperands, features: FeatureMap) -> tuple[Array, Any]:
    """Returns the results of `attend_noncausal_chunks`, and the values saved for its backward pass."""
    sums_BGVR, stabiliser_BGR = sum_keys(operands, features)
    if axis is not None:
        own_BGR, stabiliser_BGR = stabiliser_BGR, jax.lax.pmax(stabiliser_BGR, axis)
        sums_BGVR = jax.lax.psum(sums_BGVR * jnp.exp(own_BGR - stabiliser_BGR)[:, :, None], axis)

    def read(query_BGhCK: Array) -> tuple[Array, Array, Array]:
        query_BGhCR, scale_BGhC = query_features(
            features.map_to_log_features(query_BGhCK), stabiliser_BGR[:, :, None, None]
        )
        both_BGhCV = jnp.einsum('BGhCR,BGVR->BGhCV', query_BGhCR, sums_BGVR)
        denominator_BGhC = jnp.where(scale_BGhC > LOWEST_LOG / 2, both_BGhCV[..., -1], 0.0)
        has_key, safe = safe_denominator(denominator_BGhC)
        out_BGhCK = jnp.where(has_key[..., None], both_BGhCV[..., :-1] / safe[..., None], 0.0)
        return out_BGhCK, scale_BGhC, denominator_BGhC

    out_nBGhCK, scale_nBGhC, denominator_nBGhC = jax.lax.map(read, operands.query_nBGhCK)
    saved = SavedSums(sums_BGVR, stabiliser_BGR, scale_nBGhC, denominator_nBGhC, out_nBGhCK)
    return out_nBGhCK, (operands, features, saved)


def safe_denominator(
    denominator_BGhC: Float[Array, 'B G h C'],
) -> tuple[Bool[Array, 'B G h C'], Float[Array, 'B G h C']]:
    """Returns whether each query has a key to read, and denominators that are safe to divide by: 1 for queries without
    a key.

    Callers replace the results of such queries. Without the 1, second derivatives would multiply infinity by zero.
    """
    has_key_BGhC = denominator_BGhC > SMALLEST_DENOMINATOR
    return has_key_BGhC, jnp.where(has_key_BGhC, denominator_BGhC, 1.0)


def sum_keys(operands: FeatureOperands, features: FeatureMap) -> tuple[Array, Array]:
    """Returns the sums of values times features over all keys, [B, G, V, R], and the largest log feature of any key,
    [B, G, R].

    The sums are divided by exp of this largest log feature.
    """
    _, batch, groups, _, width = operands.value_nBGCV.shape

    def add(carry: tuple[Array, Array], chunk: tuple[Array, Array, Array | None]) -> tuple[tuple[Array, Array], None]:
        (sums_BGVR, before_BGR), (key_BGCK, value_BGCV, valid_BC) = carry, chunk
        logs_BGCR = mask_keys(features.map_to_log_features(key_BGCK), valid_BC)
        stabiliser_BGR = jnp.maximum(before_BGR, logs_BGCR.max(axis=2))
        key_BGCR = key_features(logs_BGCR, stabiliser_BGR[:, :, None])
        sums_BGVR = sums_BGVR * jnp.exp(before_BGR - stabiliser_BGR)[:, :, None]
        return (sums_BGVR + jnp.einsum('BGCV,BGCR->BGVR', value_BGCV, key_BGCR), stabiliser_BGR), None

    count = features.feature_count(operands.key_nBGCK.shape[-1])
    sums_BGVR = jnp.zeros((batch, groups, width, count), jnp.float32)
    start = sums_BGVR, jnp.full((batch, groups, count), MASKED, jnp.float32)
    return jax.lax.scan(add, start, (operands.key_nBGCK, operands.value_nBGCV, operands.valid_nBC))[0]


def backward(axis: str | None, kept: Any, dout_nBGhCK: Array) -> tuple[FeatureOperands, None]:
    """Returns the gradients of queries, keys and values for noncausal linear attention."""
    operands, features, saved = kept
    dsums_BGVR, dquery_nBGhCK = query_gradients(operands, features, saved, dout_nBGhCK)
    dsums_BGVR = dsums_BGVR if axis is None else jax.lax.psum(dsums_BGVR, axis)
    dkey_nBGCK, dvalue_nBGCV = key_gradients(operands, features, saved, dsums_BGVR)
    return FeatureOperands(dquery_nBGhCK, dkey_nBGCK, dvalue_nBGCV, None), None


def query_gradients(
    operands: FeatureOperands, features: FeatureMap, saved: SavedSums, dout_nBGhCK: Array
) -> tuple[Array, Array]:
    """Returns the gradients of the key sums [B, G, V, R] and of the queries [n, B, G, h, C, K]."""

    def of_queries(dsums_BGVR: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
        query_BGhCK, dout_BGhCK, out_BGhCK, scale_BGhC, denominator_BGhC = chunk
        logs_BGhCR, into_query = jax.vjp(features.map_to_log_features, query_BGhCK)
        query_BGhCR = jnp.exp(logs_BGhCR + saved.stabiliser_BGR[:, :, None, None] - scale_BGhC[..., None])
        has_key, safe = safe_denominator(denominator_BGhC)
        unit = jnp.where(has_key, 1.0 / safe, 0.0)[..., None]
        dtotal_BGhC1 = -(dout_BGhCK * out_BGhCK).sum(axis=-1, keepdims=True)
        dboth_BGhCV = jnp.concatenate([dout_BGhCK, dtotal_BGhC1], axis=-1) * unit
        dquery_BGhCR = jnp.einsum('BGhCV,BGVR->BGhCR', dboth_BGhCV, saved.sums_BGVR)
        dsums_BGVR = dsums_BGVR + jnp.einsum('BGhCV,BGhCR->BGVR', dboth_BGhCV, query_BGhCR)
        return dsums_BGVR, into_query(dquery_BGhCR * query_BGhCR)[0]

    of_each_query = saved.out_nBGhCK, saved.scale_nBGhC, saved.denominator_nBGhC
    chunks = operands.query_nBGhCK, dout_nBGhCK, *of_each_query
    return jax.lax.scan(of_queries, jnp.zeros_like(saved.sums_BGVR), chunks)


def key_gradients(
    operands: FeatureOperands, features: FeatureMap, saved: SavedSums, dsums_BGVR: Array
) -> tuple[Array, Array]:
    """Returns the gradients of keys [n, B, G, C, K] and values [n, B, G, C, V]."""

    def of_keys(chunk: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
        key_BGCK, value_BGCV, valid_BC = chunk
        logs_BGCR, into_key = jax.vjp(features.map_to_log_features, key_BGCK)
        key_BGCR = key_features(mask_keys(logs_BGCR, valid_BC), saved.stabiliser_BGR[:, :, None])
        dkey_BGCR = jnp.einsum('BGCV,BGVR->BGCR', value_BGCV, dsums_BGVR)
        return into_key(dkey_BGCR * key_BGCR)[0], jnp.einsum('BGCR,BGVR->BGCV', key_BGCR, dsums_BGVR)

    return jax.lax.map(of_keys, (operands.key_nBGCK, operands.value_nBGCV, operands.valid_nBC))


attend_noncausal_chunks.defvjp(forward, backward)
