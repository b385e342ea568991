"""What a feature map is: a static function and its rows; and the scales of features, which never change a result."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.favor.random_features import draw_features, log_softmax_features
from efficient_attention.attention.features.feature_map import (
    FeatureMap,
    key_features,
    mask_keys,
    query_features,
    quotient,
)
from efficient_attention.attention.linear.definition import ELU
from efficient_attention.attention.weights import MASKED
from tests.tolerances import assert_close


def test_it_counts_its_features_and_is_an_argument_of_compiled_programs():
    features = FeatureMap(log_softmax_features, draw_features(jax.random.key(0), 6, 4, orthogonal=True))
    assert features.count(4) == 6 and ELU.count(4) == 4
    traced = []

    @jax.jit
    def logs(features: FeatureMap, x: jax.Array) -> jax.Array:
        traced.append(features.count(4))
        return features.logs(x)

    x = jnp.ones((2, 4))
    assert_close(logs(features, x), features.logs(x))
    logs(FeatureMap(log_softmax_features, 2.0 * features.projection), x)
    assert traced == [6] and logs(ELU, x).shape == (2, 4) and traced == [6, 4]


def test_scales_cancel_in_the_quotient():
    query_logs, key_logs = jax.random.normal(jax.random.key(1), (2, 1, 1, 5, 3))
    stabiliser = key_logs.max(axis=2, keepdims=True)
    query, scale = query_features(query_logs, stabiliser)
    inside = jnp.einsum('BGLR,BGMR->BGLM', query, key_features(key_logs, stabiliser))
    out, lse = quotient(inside, inside.sum(axis=-1), scale)
    expected = jnp.einsum('BGLR,BGMR->BGLM', jnp.exp(query_logs), jnp.exp(key_logs))
    assert_close(out, expected / expected.sum(axis=-1, keepdims=True))
    assert_close(lse, jnp.log(expected.sum(axis=-1)))


def test_masked_keys_have_no_features_and_a_query_without_keys_gives_zeros():
    logs = mask_keys(jnp.zeros((1, 1, 2, 3)), jnp.asarray([[True, False]]))
    np.testing.assert_array_equal(key_features(logs, jnp.zeros((1, 1, 1, 3)))[0, 0], [[1.0] * 3, [0.0] * 3])
    out, lse = quotient(jnp.zeros((1, 2)), jnp.zeros(1), jnp.zeros(1))
    assert not out.any() and lse[0] == jnp.float32(MASKED)
