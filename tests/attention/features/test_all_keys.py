"""Attention through features where every key is read: the hand-written gradient is the formula's for any block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.devices import using_forms
from efficient_attention.attention.favor.random_features import KERNELS, draw_features
from efficient_attention.attention.features.all_keys import attend_all
from efficient_attention.attention.features.feature_map import FeatureMap
from tests.tolerances import assert_close

B, L, M, H, G, K, R = 2, 21, 13, 4, 2, 8, 24
PROJECTION = jax.jit(lambda: draw_features(jax.random.key(5), R, K, orthogonal=True))()


def operands(scale: float = 1.0) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    shapes = (B, L, H, K), (B, M, G, K), (B, M, G, K), (B, L, H, K)
    rngs = jax.random.split(jax.random.key(0), 4)
    q, k, v, cotangent = (jax.random.normal(rng, shape) for rng, shape in zip(rngs, shapes, strict=True))
    return scale * q, scale * k, v, cotangent


def formula(q: jax.Array, k: jax.Array, v: jax.Array, valid: jax.Array, kernel: str) -> jax.Array:
    """phi(q) (phi(k)^T v) / phi(q) sum phi(k), as it stands."""
    k, v = (jnp.repeat(x, H // G, axis=2) for x in (k, v))
    query, key = (jnp.exp(KERNELS[kernel](x, PROJECTION)) for x in (q, k))
    key = jnp.where(valid[:, :, None, None], key, 0.0)
    weights = jnp.einsum('BLHR,BMHR->BHLM', query, key)
    return jnp.einsum('BHLM,BMHK->BLHK', weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize('block', [4, 64])
@pytest.mark.parametrize('kernel', ['softmax', 'relu'])
def test_values_and_gradients_are_those_of_the_formula(kernel: str, block: int):
    q, k, v, cotangent = operands()
    valid = jnp.arange(M)[None] < jnp.asarray([M, 9])[:, None]
    with using_forms(feature_key_block=block):
        out, pull = jax.vjp(
            lambda q, k, v: attend_all(q, k, v, valid, FeatureMap(KERNELS[kernel], PROJECTION)), q, k, v
        )
        gradients = pull(cotangent)
    expected, expected_pull = jax.vjp(lambda q, k, v: formula(q, k, v, valid, kernel), q, k, v)
    assert_close(out, expected)
    assert_close(gradients, expected_pull(cotangent), gradient=True)


def test_a_row_without_keys_gives_zeros_and_sends_back_zeros():
    q, k, v, cotangent = operands()
    valid = jnp.arange(M)[None] < jnp.asarray([M, 0])[:, None]
    out, pull = jax.vjp(lambda q, k, v: attend_all(q, k, v, valid, FeatureMap(KERNELS['softmax'], PROJECTION)), q, k, v)
    assert not out[1].any() and out[0].all()
    for gradient in pull(cotangent):
        assert not gradient[1].any() and gradient[0].any()


def test_large_vectors_give_finite_gradients():
    """Norms near 50: products of features span more than float32 does."""
    q, k, v, cotangent = operands(scale=18.0)
    out, pull = jax.vjp(lambda q, k, v: attend_all(q, k, v, None, FeatureMap(KERNELS['softmax'], PROJECTION)), q, k, v)
    for x in (out, *pull(cotangent)):
        assert jnp.isfinite(x).all()
    np.testing.assert_array_less(jnp.abs(out).max(), jnp.abs(v).max() * 1.001)
