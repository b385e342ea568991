"""Tests that a feature map is a static function with its arrays, and that scales of features never change a result."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.favor.random_features import log_softmax_features
from efficient_attention.attention.features.feature_map import (
    FeatureMap,
    divide_sums,
    key_features,
    mask_keys,
    query_features,
)
from efficient_attention.attention.linear.definition import ELU
from tests.tolerances import assert_close


def test_it_counts_its_features_and_is_an_argument_of_compiled_programs():
    features = FeatureMap(
        log_softmax_features, jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
    )
    assert features.feature_count(4) == 6 and ELU.feature_count(4) == 4
    traced = []

    @jax.jit
    def logs(features: FeatureMap, x: jax.Array) -> jax.Array:
        traced.append(features.feature_count(4))
        return features.map_to_log_features(x)

    x = jnp.asarray(np.ones((2, 4), np.float32))
    assert_close(logs(features, x), jax.jit(features.map_to_log_features)(x))
    logs(FeatureMap(log_softmax_features, 2.0 * np.asarray(features.projection)), x)
    assert traced == [6] and logs(ELU, x).shape == (2, 4) and traced == [6, 4]


def test_scales_cancel_in_the_quotient():
    query_logs, key_logs = np.random.default_rng(1).normal(size=(2, 1, 1, 5, 3)).astype(np.float32)

    @jax.jit
    def by_scales(query_logs: jax.Array, key_logs: jax.Array) -> tuple[jax.Array, jax.Array]:
        stabiliser = key_logs.max(axis=2, keepdims=True)
        query, scale = query_features(query_logs, stabiliser)
        inside = jnp.einsum('BGLR,BGMR->BGLM', query, key_features(key_logs, stabiliser))
        return divide_sums(inside, inside.sum(axis=-1), scale)

    out, lse = by_scales(query_logs, key_logs)
    expected = np.einsum('BGLR,BGMR->BGLM', np.exp(query_logs), np.exp(key_logs))
    assert_close(out, expected / expected.sum(axis=-1, keepdims=True))
    assert_close(lse, np.log(expected.sum(axis=-1)))


def test_masked_keys_have_no_features_and_a_query_without_keys_gives_zeros():

    @jax.jit
    def results(is_key: jax.Array) -> tuple:
        logs = mask_keys(jnp.zeros((1, 1, 2, 3)), is_key)
        return key_features(logs, jnp.zeros((1, 1, 1, 3))), divide_sums(jnp.zeros((1, 2)), jnp.zeros(1), jnp.zeros(1))

    features, (out, lse) = jax.device_get(results(np.asarray([[True, False]])))
    np.testing.assert_array_equal(features[0, 0], [[1.0] * 3, [0.0] * 3])
    assert not out.any() and lse[0] == np.float32(MASKED)
