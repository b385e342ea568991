"""Features by relu and cosines: their products, zeros that are no key, and positions beyond the length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.cache import decode, init_cache
from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.features.cosine import behind, cosine_map, log_features_of, with_places
from efficient_attention.attention.linear.definition import Linear
from tests.attention.cells import inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close


def test_products_of_features_are_relu_s_times_the_cosine_of_the_distance():
    q, k = (np.random.default_rng(seed).normal(size=(1, 6, 1, 4)).astype(np.float32) for seed in (0, 1))
    features = cosine_map(9)
    of_q, of_k = (jnp.exp(features.logs(behind(x, jnp.arange(6)[None]))) for x in (jnp.asarray(q), jnp.asarray(k)))
    assert of_q.shape == (1, 6, 1, 8) and features.count(5) == 8
    found = jnp.einsum('BLHR,BMHR->LM', of_q, of_k)
    places = np.arange(6)
    turned = np.cos(np.pi / 2 * (places[:, None] - places) / 9)
    assert_close(found, np.maximum(q[0, :, 0], 0) @ np.maximum(k[0, :, 0], 0).T * turned)
    assert log_features_of(9) is log_features_of(9)


def test_a_query_that_shares_nothing_with_any_key_gives_zeros_and_no_gradient():
    q, k, v = inputs(12)[0]
    q, k = q.at[0, 5].set(-jnp.abs(q[0, 5])), k.at[1].set(-jnp.abs(k[1]))
    for mechanism in (Linear('cos', 12), Linear('cos', 12, causal=True, chunk=4)):
        for backend in ('reference', 'blocked'):
            run = functools.partial(attend, mechanism=mechanism, backend=backend)
            out, gradients = quick(
                lambda *x, run=run: (run(*x), jax.grad(lambda *y: (run(*y) ** 2).sum(), (0, 1, 2))(*x))
            )(q, k, v)
            assert not out[0, 5].any() and not out[1].any() and out[0, 6].any()
            assert all(jnp.isfinite(one).all() and not one[1].any() for one in gradients)


@pytest.mark.parametrize('shift', [4, -1])
@pytest.mark.parametrize('backend', ['reference', 'blocked'])
def test_a_position_beyond_the_length_or_below_0_is_nan(backend: str, shift: int):
    """A causal query before it reads on; without order every query of the row would have read it."""
    q, k, v = (jnp.abs(x) for x in inputs(6)[0])
    places = jnp.asarray([np.arange(6), np.arange(6)])
    far = places.at[1].add(shift)
    options = {'query_positions': far, 'key_positions': far, 'backend': backend}
    out = quick(lambda *x: attend(*x, Linear('cos', 8), **options))(q, k, v)
    assert jnp.isfinite(out[0]).all() and jnp.isnan(out[1]).all()


def test_what_is_decoded_beyond_the_length_is_nan():
    q, k, v = (jnp.abs(x) for x in inputs(6)[0])
    spec = CacheSpec(Linear('cos', 8, causal=True, chunk=4), 4, 4, 8, 8)
    places, ones = jnp.asarray([np.arange(6), np.arange(6) + 4]), jnp.ones((2, 6), jnp.int32)
    out, _ = decode(spec, init_cache(spec, 2, 'float32'), NewTokens(q, k, v, places, ones))
    assert jnp.isfinite(out[0]).all() and jnp.isfinite(out[1, :4]).all() and jnp.isnan(out[1, 4:]).all()


def test_values_have_a_zero_behind_them():
    q, k, v = inputs(5)[0]
    placed = with_places(make_request(q, k, v, Linear('cos', 8)))
    assert placed.value.shape == (2, 5, 4, 9) and not placed.value[..., -1].any()
    np.testing.assert_array_equal(placed.key[1, :, 2, -1], np.arange(5))
