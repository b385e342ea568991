"""Tests how parameters are initialised, and in which dtypes layers compute."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer_constructors import embedding, linear, make_norm


def test_weights_are_a_truncated_normal_and_biases_zero():
    layer = linear(LayerConfig(init_std=0.02), 300, 400, nnx.Rngs(0))
    kernel = np.asarray(layer.kernel[...])
    assert abs(kernel).max() <= 0.04 + 1e-6 and abs(kernel.mean()) < 1e-3
    # A normal distribution cut at two deviations has 0.88 of its standard deviation.
    np.testing.assert_allclose(kernel.std(), 0.88 * 0.02, rtol=0.02)
    assert not layer.bias[...].any()


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_parameters_are_float32_and_results_in_the_compute_dtype(dtype: str):
    config = LayerConfig(dtype=dtype)
    layers = linear(config, 8, 8, nnx.Rngs(0)), make_norm(config, 8, nnx.Rngs(0)), embedding(config, 5, 8, nnx.Rngs(0))
    inputs = jnp.ones((2, 8), dtype), jnp.ones((2, 8), dtype), jnp.ones((2,), jnp.int32)
    for layer, x in zip(layers, inputs, strict=True):
        assert layer(x).dtype == dtype
        assert {leaf.dtype for leaf in nnx.to_flat_state(nnx.state(layer)).leaves} == {jnp.dtype('float32')}


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
@pytest.mark.parametrize('kind', ['layer', 'rms'])
def test_norm_statistics_are_float32(kind: str):
    """Numbers near 300 with a spread of 30 need statistics in float32, because bfloat16 has steps of 2 there."""
    config = LayerConfig(dtype='bfloat16', norm_kind=kind)
    x = jnp.asarray(np.random.default_rng(0).normal(0, 30, (4, 512)) + 300, jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    exact = exact - exact.mean(-1, keepdims=True) if kind == 'layer' else exact
    exact = exact / np.sqrt(np.square(exact).mean(-1, keepdims=True))
    np.testing.assert_allclose(np.asarray(make_norm(config, 512, nnx.Rngs(0))(x), np.float64), exact, atol=3e-2)


def test_matrices_may_start_by_their_inputs():
    kernel = np.asarray(linear(LayerConfig(kernel_init='fan_in'), 300, 400, nnx.Rngs(0)).kernel[...])
    np.testing.assert_allclose(kernel.std(), 300**-0.5, rtol=0.02)
    assert abs(kernel).max() > 3 * 300**-0.5  # This normal distribution is not cut.
