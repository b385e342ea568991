"""Tests features by relu and cosines: their products, keys whose features are all zero, and positions beyond the
length.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.cache import decode, init_cache
from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.features.cosine import (
    append_positions,
    append_request_positions,
    cosine_map,
    make_log_cosine_features,
)
from efficient_attention.attention.linear.definition import Linear
from tests.attention.cells import inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close


def test_products_of_features_are_relu_s_times_the_cosine_of_the_distance():
    q, k = (np.random.default_rng(seed).normal(size=(1, 6, 1, 4)).astype(np.float32) for seed in (0, 1))
    features = cosine_map(9)
    features_of = quick(lambda x: jnp.exp(features.map_to_log_features(append_positions(x, jnp.arange(6)[None]))))
    of_q, of_k = (np.asarray(features_of(x)) for x in (q, k))
    assert of_q.shape == (1, 6, 1, 8) and features.feature_count(5) == 8
    found = np.einsum('BLHR,BMHR->LM', of_q, of_k)
    places = np.arange(6)
    turned = np.cos(np.pi / 2 * (places[:, None] - places) / 9)
    assert_close(found, np.maximum(q[0, :, 0], 0) @ np.maximum(k[0, :, 0], 0).T * turned)
    assert make_log_cosine_features(9) is make_log_cosine_features(9)


def test_a_query_that_shares_nothing_with_any_key_gives_zeros_and_no_gradient():
    q, k, v = map(np.array, inputs(12)[0])
    q[0, 5], k[1] = -np.abs(q[0, 5]), -np.abs(k[1])
    for mechanism in (Linear('cos', 12), Linear('cos', 12, causal=True, chunk=4)):
        for backend in ('reference', 'blocked'):

            def total(*arrays: jax.Array, mechanism: Linear = mechanism, backend: str = backend) -> tuple:
                out = attend(*arrays, mechanism, backend=backend)
                return (out**2).sum(), out

            gradients, out = jax.device_get(quick(jax.grad(total, (0, 1, 2), has_aux=True))(q, k, v))
            assert not out[0, 5].any() and not out[1].any() and out[0, 6].any()
            assert all(np.isfinite(one).all() and not one[1].any() for one in gradients)


@pytest.mark.parametrize('backend', ['reference', 'blocked'])
def test_a_position_beyond_the_length_or_below_0_is_nan(backend: str):
    """Every query of the row can read the wrong position, so all its outputs are NaN; if causal, earlier ones stay
    valid.
    """
    arrays = [np.abs(x) for x in inputs(6)[0]]

    @quick
    def run(q: jax.Array, k: jax.Array, v: jax.Array, places: jax.Array) -> jax.Array:
        options = {'query_positions': places, 'key_positions': places, 'backend': backend}
        return attend(q, k, v, Linear('cos', 8), **options)

    for shift in (4, -1):
        out = np.asarray(run(*arrays, np.asarray([np.arange(6), np.arange(6) + shift], np.int32)))
        assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()


def test_what_is_decoded_beyond_the_length_is_nan():
    q, k, v = (np.abs(x) for x in inputs(6)[0])
    spec = CacheSpec(Linear('cos', 8, causal=True, chunk=4), 4, 4, 8, 8)
    places, ones = np.asarray([np.arange(6), np.arange(6) + 4], np.int32), np.ones((2, 6), np.int32)
    new = NewTokens(q, k, v, places, ones)
    out = np.asarray(quick(lambda new: decode(spec, init_cache(spec, 2, 'float32'), new)[0])(new))
    assert np.isfinite(out[0]).all() and np.isfinite(out[1, :4]).all() and np.isnan(out[1, 4:]).all()


def test_values_have_a_zero_behind_them():
    q, k, v = inputs(5)[0]

    @quick
    def placed(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        request = append_request_positions(make_request(*arrays, Linear('cos', 8)))
        return request.key, request.value

    key, value = map(np.asarray, placed(q, k, v))
    assert value.shape == (2, 5, 4, 9) and not value[..., -1].any()
    np.testing.assert_array_equal(key[1, :, 2, -1], np.arange(5))
