"""Tests symmetric 8-bit codes: the error is at most half a step, and products are those of integers."""

import jax
import numpy as np
import pytest

from efficient_attention.attention.devices import using_device_tuning
from efficient_attention.modules.int8 import (
    dequantize_int8,
    fake_quantize,
    int8_matmul,
    int8_product,
    int8_scale,
    quantize_to_int8,
)
from tests.tolerances import assert_close


@pytest.mark.parametrize('axis', [0, 1])
def test_a_round_trip_loses_half_a_step_at_most(axis: int):
    x = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    x[3], x[:, 5] = 0.0, 0.0

    @jax.jit
    def coded(x: jax.Array) -> tuple:
        scale = int8_scale(x, axis)
        codes = quantize_to_int8(x, scale)
        return scale, codes, dequantize_int8(codes, scale)

    scale, codes, numbers = jax.device_get(coded(x))
    assert codes.dtype == np.int8 and np.abs(codes.astype(int)).max() == 128 and scale.shape[axis] == 1
    lost = np.abs(numbers - x) / scale
    assert lost.max() <= 0.5 + 1e-4
    np.testing.assert_array_equal(numbers[3], np.zeros(40))


@pytest.mark.parametrize('inputs', [768, 1536])
@pytest.mark.parametrize('as_bfloat16', [False, True])
def test_products_are_those_of_integers(inputs: int, as_bfloat16: bool):
    """Also at the ends of the range: 1,536 times 128 squared exceeds the integers that float32 represents exactly."""
    rng = np.random.default_rng(1)
    x, kernel = rng.normal(size=(3, 5, inputs)).astype(np.float32), rng.normal(size=(inputs, 8)).astype(np.float32)
    x[0], kernel[:, 0] = -1.0, -1.0
    scales = jax.jit(lambda x, axis: (int8_scale(x, axis), quantize_to_int8(x, int8_scale(x, axis))), static_argnums=1)
    (scale, codes), (token, own) = jax.device_get((scales(kernel, 0), scales(x, -1)))
    sums = own.astype(np.int64) @ codes.astype(np.int64)
    assert sums.max() in (inputs * 127 * 127, inputs * 128 * 128)
    with using_device_tuning(codes_as_bfloat16=as_bfloat16):
        found = jax.jit(int8_product)(x, codes, scale)
        np.testing.assert_array_equal(jax.jit(int8_matmul)(own, codes), sums.astype(np.float32))
    assert_close(found, (sums * np.asarray(token, np.float64) * np.asarray(scale, np.float64)[0]).astype(np.float32))


def test_a_gradient_passes_as_if_nothing_were_rounded():
    x, factor = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)

    @jax.jit
    def run(x: jax.Array) -> tuple:
        gradient, out = jax.grad(lambda x: ((fake_quantize(x, -1) * factor).sum(), fake_quantize(x, -1)), has_aux=True)(
            x
        )
        return gradient, out, dequantize_int8(quantize_to_int8(x, int8_scale(x, -1)), int8_scale(x, -1))

    gradient, out, expected = jax.device_get(run(x))
    np.testing.assert_array_equal(gradient, factor)
    assert_close(out, expected)
