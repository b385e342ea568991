"""Symmetric int8 quantization for matrix products, with one scale per kernel output, per table row, or per token.

A code is round(x / scale), from -128 to 127, with scale = max |x| / 127.5. The library compressed-tensors computes the
same codes, so both can read the integers of a checkpoint. XLA multiplies two int8 arrays with the device's int8
instructions. On CPUs whose bfloat16 instructions are faster (`DeviceTuning.codes_as_bfloat16`), these compute the same
integers.
"""

import functools
import itertools

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Float, Int8

from efficient_attention.attention.devices import device_tuning

HALF_RANGE = 127.5
SMALLEST = 1e-12  # minimum scale, for vectors of only zeros
EXACT = 2**10  # number of products of two codes, each at most 2^14, that float32 can sum exactly


def int8_scale(x: ArrayLike, axis: int) -> Array:
    """Returns the float32 quantization scales along an axis, which gets size 1; a scale is the value of one integer
    step.
    """
    most = jnp.abs(jnp.asarray(x, jnp.float32)).max(axis=axis, keepdims=True)
    return jnp.maximum(most / HALF_RANGE, SMALLEST)


def quantize_to_int8(x: ArrayLike, scale: ArrayLike) -> Array:
    """Returns the int8 codes of an array for these quantization scales."""
    return jnp.clip(jnp.round(jnp.asarray(x, jnp.float32) / jnp.asarray(scale)), -128.0, 127.0).astype(jnp.int8)


def dequantize_int8(codes: ArrayLike, scale: ArrayLike) -> Array:
    """Returns the float32 numbers that the codes represent."""
    return jnp.asarray(codes, jnp.float32) * jnp.asarray(scale)


def fake_quantize(x: Float[Array, '...'], axis: int) -> Float[Array, '...']:
    """Returns the array rounded to the values of its int8 codes; the gradient ignores the rounding (straight-through).

    Source: Jacob et al. 2017, arXiv 1712.05877, section 3; straight-through estimator: Bengio et al. 2013, arXiv
    1308.3432.
    """
    scale = int8_scale(x, axis)
    said = dequantize_int8(quantize_to_int8(x, scale), scale).astype(x.dtype)
    return x + lax.stop_gradient(said - x)


def int8_product(x: Float[Array, '... I'], codes_IO: Array, scale_1O: Array) -> Float[Array, '... O']:
    """Returns float32 x [..., I] times an int8 kernel [I, O]; each token of x is quantized to int8, and sums are
    int32.
    """
    scale = int8_scale(x, -1)
    sums = int8_matmul(quantize_to_int8(x, scale), codes_IO)
    wide = lax.broadcast_in_dim(scale_1O[0], sums.shape, (sums.ndim - 1,))
    return sums * jnp.broadcast_to(scale, sums.shape) * wide


def int8_matmul(codes: Int8[Array, '... I'], codes_IO: Array) -> Float[Array, '... O']:
    """Returns the matrix product of int8 codes [..., I] and int8 codes [I, O], as float32.

    For up to 2,048 inputs, the result is the exact integer sum, rounded once to float32.
    """
    contracted = ((codes.ndim - 1,), (0,)), ((), ())
    if not device_tuning().codes_as_bfloat16:
        return lax.dot_general(codes, codes_IO, contracted, preferred_element_type=jnp.int32).astype(jnp.float32)
    inputs, parts = codes.shape[-1], -(-codes.shape[-1] // EXACT)
    borders = [inputs * part // parts for part in range(parts + 1)]
    sums = []
    for first, last in itertools.pairwise(borders):
        operands = codes[..., first:last].astype(jnp.bfloat16), codes_IO[first:last].astype(jnp.bfloat16)
        sums.append(lax.dot_general(*operands, contracted, preferred_element_type=jnp.float32))
    return functools.reduce(jnp.add, sums)
