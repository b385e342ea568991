"""Tests non-causal attention through features: its hand-written gradient equals the formula's for any block size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.devices import using_device_tuning
from efficient_attention.attention.favor.random_features import KERNELS
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.features.noncausal import attend_noncausal
from tests.tolerances import assert_close

B, L, M, H, G, K, R = 2, 21, 13, 4, 2, 8, 24
PROJECTION = jnp.asarray(np.random.default_rng(5).normal(size=(R, K)), jnp.float32)


def operands(scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    shapes, rng = ((B, L, H, K), (B, M, G, K), (B, M, G, K), (B, L, H, K)), np.random.default_rng(0)
    q, k, v, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return np.float32(scale) * q, np.float32(scale) * k, v, cotangent


def valid_keys(*counts: int) -> np.ndarray:
    return np.arange(M)[None] < np.asarray(counts)[:, None]


@functools.partial(jax.jit, static_argnums=(0, 1))
def served(kernel: str, block: int, valid: jax.Array | None, *operands: jax.Array) -> tuple[jax.Array, tuple]:
    """Returns the outputs and gradients of non-causal attention through features."""
    *inputs, cotangent = operands
    with using_device_tuning(feature_key_block=block):
        out, pull = jax.vjp(lambda *x: attend_noncausal(*x, valid, FeatureMap(KERNELS[kernel], PROJECTION)), *inputs)
        return out, pull(cotangent)


@functools.partial(jax.jit, static_argnums=0)
def defined(kernel: str, valid: jax.Array, *operands: jax.Array) -> tuple[jax.Array, tuple]:
    *inputs, cotangent = operands
    out, pull = jax.vjp(lambda *x: formula(*x, valid, kernel), *inputs)
    return out, pull(cotangent)


def formula(q: jax.Array, k: jax.Array, v: jax.Array, valid: jax.Array, kernel: str) -> jax.Array:
    """Computes phi(q) (phi(k)^T v) / phi(q) sum phi(k) literally."""
    k, v = (jnp.repeat(x, H // G, axis=2) for x in (k, v))
    query, key = (jnp.exp(KERNELS[kernel](x, PROJECTION)) for x in (q, k))
    key = jnp.where(valid[:, :, None, None], key, 0.0)
    weights = jnp.einsum('BLHR,BMHR->BHLM', query, key)
    return jnp.einsum('BHLM,BMHK->BLHK', weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize('block', [4, 64])
@pytest.mark.parametrize('kernel', ['softmax', 'relu'])
def test_values_and_gradients_are_those_of_the_formula(kernel: str, block: int):
    valid = valid_keys(M, 9)
    out, gradients = served(kernel, block, valid, *operands())
    expected, expected_gradients = defined(kernel, valid, *operands())
    assert_close(out, expected)
    assert_close(gradients, expected_gradients, gradient=True)


def test_a_row_without_keys_gives_zeros_and_sends_back_zeros():
    out, gradients = jax.device_get(served('softmax', 64, valid_keys(M, 0), *operands()))
    assert not out[1].any() and out[0].all()
    for gradient in gradients:
        assert not gradient[1].any() and gradient[0].any()


def test_large_vectors_give_finite_gradients():
    """The norms are near 50, so products of features exceed the range of float32."""
    of_large = operands(scale=18.0)
    out, gradients = jax.device_get(served('softmax', 64, None, *of_large))
    for x in (out, *gradients):
        assert np.isfinite(x).all()
    np.testing.assert_array_less(np.abs(out).max(), np.abs(of_large[2]).max() * 1.001)
