"""Tests attention through any feature map, including a caller's own; FAVOR's tests set the map by options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.features.fast_attention import attend_features, check_supported
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.linear.definition import Linear
from tests.attention.requests import make_request
from tests.tolerances import assert_close


def log_squares(x: jax.Array, _: None) -> jax.Array:
    """Returns log(x^2 + 1)."""
    return jnp.log(jnp.square(x) + 1.0)


@pytest.mark.parametrize('causal', [False, True])
def test_a_feature_map_is_all_that_a_mechanism_brings(causal: bool):
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 9, 2, 4)).astype(np.float32)

    @jax.jit
    def out_of(*arrays: jax.Array) -> jax.Array:
        out, lse = attend_features(make_request(*arrays, Linear(causal=causal)), FeatureMap(log_squares), 4)
        assert lse is None
        return out

    products = np.einsum('BLHR,BMHR->BHLM', q**2 + 1.0, k**2 + 1.0)
    products = np.tril(products) if causal else products
    expected = np.einsum('BHLM,BMHK->BLHK', products / products.sum(axis=-1, keepdims=True), v)
    assert_close(out_of(q, k, v), expected)


def test_all_that_is_lacking_is_named_at_once():
    x = jnp.ones((1, 5, 1, 4))
    options = {'bias': jnp.zeros((1, 1, 5, 5)), 'query_positions': np.arange(1, 6)[None], 'return_lse': True}
    with pytest.raises(
        NotImplementedError, match='^linear has no additive bias, no log-sum-exp, no causal form for other'
    ):
        check_supported(make_request(x, x, x, Linear(causal=True), **options))
