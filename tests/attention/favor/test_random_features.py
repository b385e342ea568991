"""Tests random features: their distribution, and the kernel that they estimate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.favor.random_features import draw_features, log_softmax_features
from tests.tolerances import assert_close

RNG = jax.random.key(7)
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


@pytest.mark.parametrize('orthogonal', [False, True])
def test_features_estimate_the_softmax_kernel_without_bias(orthogonal: bool):
    q, k = np.random.default_rng(7).normal(size=(2, 8)).astype(np.float32)

    @jit
    def products_of(q: jax.Array, k: jax.Array) -> jax.Array:
        projection = draw_features(RNG, 80_000, 8, orthogonal)
        return jnp.exp(log_softmax_features(q, projection) + log_softmax_features(k, projection))

    products = np.asarray(products_of(q, k))
    expected = np.exp(q @ k / np.sqrt(8))
    assert abs(products.mean() - expected) < 4 * products.std() / np.sqrt(80_000) < 0.1 * expected


def test_orthogonal_features_vary_less_than_independent_ones():
    q, k = jnp.asarray(0.5 * np.random.default_rng(1).normal(size=(2, 16)), jnp.float32)

    @functools.partial(jit, static_argnums=0)
    def error(orthogonal: bool) -> jax.Array:
        def estimate(rng: jax.Array) -> jax.Array:
            projection = draw_features(rng, 16, 16, orthogonal)
            return jnp.exp(sum(log_softmax_features(x, projection) for x in (q, k))).mean()

        return jnp.square(jax.vmap(estimate)(jax.random.split(RNG, 4000)) - jnp.exp(q @ k / 4.0)).mean()

    assert error(True) < 0.9 * error(False)


def test_orthogonal_rows_are_orthogonal_inside_blocks_with_gaussian_norms():
    draw = jit(draw_features, static_argnums=(1, 2, 3))
    projection = np.asarray(draw(RNG, 2 * 16 + 5, 16, True))
    assert projection.shape == (37, 16) and projection.dtype == np.float32
    for block in (projection[:16], projection[16:32], projection[32:]):
        products = block @ block.T
        assert_close(products, np.diag(np.diagonal(products)), gradient=True)
    squares = np.square(draw(RNG, 3200, 16, True)).sum(1)
    assert abs(squares.mean() - 16) < 0.5 and abs(squares.std() / np.sqrt(32) - 1) < 0.1


def test_bfloat16_vectors_get_the_log_features_of_the_same_float32_vectors():
    """The projection is split into two bfloat16 parts; only the gradient is rounded."""
    x = 2.0 * jax.random.normal(jax.random.key(1), (50, 64), jnp.bfloat16)
    cotangent = jax.random.normal(jax.random.key(2), (50, 32))

    @jit
    def logs_and_gradient(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        projection = draw_features(RNG, 32, 64, True)
        logs, backward = jax.vjp(lambda x: log_softmax_features(x, projection), x)
        return logs, backward(cotangent)[0].astype(jnp.float32)

    (rounded, rounded_gradient), (exact, exact_gradient) = map(logs_and_gradient, (x, x.astype(jnp.float32)))
    # The largest of 1,600 differences is 2e-4, of logarithms down to -39.
    assert np.abs(rounded - exact).max() < 1e-3 and np.abs(exact).max() > 20.0
    assert_close(rounded_gradient, exact_gradient, dtype='bfloat16', gradient=True)
