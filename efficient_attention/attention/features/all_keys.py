"""FAVOR where every query reads every valid key: keys are summed chunk by chunk, and queries then read the sums.

Values have a column of ones behind them, so that one product gives numerator and denominator, forward and backward.
The backward pass is written out, because it needs neither the keys' sums again nor a sum over features: a query's
features may be scaled at will, so their logarithms' gradients add up to zero.

Axes: n chunks of C positions, G key heads with h query heads each, R features, K head width; V = K + 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_kind import device_kind
from efficient_attention.attention.favor.features import (
    SMALLEST_DENOMINATOR,
    FeatureMap,
    key_features,
    mask_keys,
    query_features,
)
from efficient_attention.attention.features.causal import cut_keys, cut_mask, cut_queries, join
from efficient_attention.attention.weights import MASKED

# Positions at once: on a CPU what stays in its cache, elsewhere all of them.
CPU_BLOCK = 256


class Inputs(NamedTuple):
    """Float32 chunks: queries [n, B, G, h, C, K], keys [n, B, G, C, K], values [n, B, G, C, V]; what keys are valid."""

    queries: Array
    keys: Array
    values: Array
    valid: Array | None  # [n, B, C]


class Read(NamedTuple):
    """What the backward pass reads again: sums [B, G, V, R] over keys of features divided by exp(stabiliser [B, G, R]);
    of each query the logarithm of its features' scale and the denominator [n, B, G, h, C]; the outputs."""

    sums: Array
    stabiliser: Array
    scales: Array
    denominators: Array
    outputs: Array


def attend_all(
    query_BLHK: Array, key_BMGK: Array, value_BMGK: Array, valid_BM: Array | None, features: FeatureMap
) -> Array:
    """Float32 outputs [B, L, H, K] of queries that read all valid keys."""
    (batch, queries), (keys, groups) = query_BLHK.shape[:2], key_BMGK.shape[1:3]
    block = CPU_BLOCK if device_kind() == 'cpu' else max(queries, keys)
    size = min(block, keys)
    values = cut_keys(value_BMGK, size)
    inputs = Inputs(
        cut_queries(query_BLHK, groups, min(block, queries)),
        cut_keys(key_BMGK, size),
        jnp.concatenate([values, jnp.ones_like(values[..., :1])], axis=-1),
        cut_mask(valid_BM, batch, keys, size),
    )
    return join(read_all(inputs, features), queries)


@jax.custom_vjp
def read_all(inputs: Inputs, features: FeatureMap) -> Array:
    """Outputs [n, B, G, h, C, K]; the random rows have no gradient."""
    return forward(inputs, features)[0]


def forward(inputs: Inputs, features: FeatureMap) -> tuple[Array, Any]:
    """`read_all`, and what its backward pass needs."""
    sums, stabiliser = sum_keys(inputs, features)

    def read(query_BGhCK: Array) -> tuple[Array, Array, Array]:
        query_BGhCR, scale = query_features(features.logs(query_BGhCK), stabiliser[:, :, None, None])
        both = jnp.einsum('BGhCR,BGVR->BGhCV', query_BGhCR, sums)
        denominator = both[..., -1]
        has_key = (denominator > SMALLEST_DENOMINATOR)[..., None]
        return jnp.where(has_key, both[..., :-1] / denominator[..., None], 0.0), scale, denominator

    outputs, scales, denominators = jax.lax.map(read, inputs.queries)
    return outputs, (inputs, features, Read(sums, stabiliser, scales, denominators, outputs))


def sum_keys(inputs: Inputs, features: FeatureMap) -> tuple[Array, Array]:
    """The sums [B, G, V, R] over all keys, and the largest logarithm of each feature, by whose exp they are divided."""
    _, batch, groups, _, width = inputs.values.shape

    def add(carry: tuple[Array, Array], chunk: tuple[Array, Array, Array | None]) -> tuple[tuple[Array, Array], None]:
        (sums, before), (key, value, valid) = carry, chunk
        logs = mask_keys(features.logs(key), valid)
        stabiliser = jnp.maximum(before, logs.max(axis=2))
        key_BGCR = key_features(logs, stabiliser[:, :, None])
        sums = sums * jnp.exp(before - stabiliser)[:, :, None]
        return (sums + jnp.einsum('BGCV,BGCR->BGVR', value, key_BGCR), stabiliser), None

    count = features.count(inputs.keys.shape[-1])
    sums = jnp.zeros((batch, groups, width, count), jnp.float32)
    start = sums, jnp.full((batch, groups, count), MASKED, jnp.float32)
    return jax.lax.scan(add, start, (inputs.keys, inputs.values, inputs.valid))[0]


def backward(kept: Any, douts_nBGhCK: Array) -> tuple[Inputs, None]:
    """Gradients of queries, keys and values."""
    inputs, feature_map, read = kept

    def of_queries(dsums_BGVR: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
        query, dout, out, scale, denominator = chunk
        logs, into_query = jax.vjp(feature_map.logs, query)
        features = jnp.exp(logs + read.stabiliser[:, :, None, None] - scale[..., None])
        unit = jnp.where(denominator > SMALLEST_DENOMINATOR, 1.0 / denominator, 0.0)[..., None]
        dboth = jnp.concatenate([dout, -(dout * out).sum(axis=-1, keepdims=True)], axis=-1) * unit
        dfeatures = jnp.einsum('BGhCV,BGVR->BGhCR', dboth, read.sums)
        return dsums_BGVR + jnp.einsum('BGhCV,BGhCR->BGVR', dboth, features), into_query(dfeatures * features)[0]

    chunks = inputs.queries, douts_nBGhCK, read.outputs, read.scales, read.denominators
    dsums_BGVR, dqueries = jax.lax.scan(of_queries, jnp.zeros_like(read.sums), chunks)

    def of_keys(chunk: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
        key, value, valid = chunk
        logs, into_key = jax.vjp(feature_map.logs, key)
        features = key_features(mask_keys(logs, valid), read.stabiliser[:, :, None])
        dfeatures = jnp.einsum('BGCV,BGVR->BGCR', value, dsums_BGVR)
        return into_key(dfeatures * features)[0], jnp.einsum('BGCR,BGVR->BGCV', features, dsums_BGVR)

    dkeys, dvalues = jax.lax.map(of_keys, (inputs.keys, inputs.values, inputs.valid))
    return Inputs(dqueries, dkeys, dvalues, None), None


read_all.defvjp(forward, backward)
