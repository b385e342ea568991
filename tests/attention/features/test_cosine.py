"""Features by relu and cosines: their products, zeros that are no key, and positions beyond the length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend, make_request
from efficient_attention.attention.features.cosine import behind, cosine_map, log_features_of, with_places
from efficient_attention.attention.linear.definition import Linear
from tests.attention.cells import inputs, quick
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


def test_a_position_beyond_the_length_is_nan():
    logs = cosine_map(4).logs(behind(jnp.ones((1, 2, 1, 3)), jnp.asarray([[3, 4]])))
    assert jnp.isfinite(logs[0, 0]).all() and jnp.isnan(logs[0, 1]).all()


def test_values_have_a_zero_behind_them():
    q, k, v = inputs(5)[0]
    placed = with_places(make_request(q, k, v, Linear('cos', 8)))
    assert placed.value.shape == (2, 5, 4, 9) and not placed.value[..., -1].any()
    np.testing.assert_array_equal(placed.key[1, :, 2, -1], np.arange(5))
