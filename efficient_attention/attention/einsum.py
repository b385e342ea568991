"""Einsums with float32 results; for bfloat16 operands, the matrix products
of the gradients also have bfloat16 operands.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from efficient_attention.attention.devices import device_tuning

Operand = Float[Array, '...']  # an operand whose axes the einsum equation names


def float32_einsum(equation: str, left: Operand, right: Operand, precision: jax.lax.Precision | None = None) -> Operand:
    """Returns the einsum of two operands of the same dtype, with a float32 result.

    For bfloat16 operands the gradient is rounded to bfloat16 before it is multiplied, as fused kernels do. JAX's own
    rule multiplies a float32 gradient with a bfloat16 operand, for which no hardware has an instruction.
    """
    if left.dtype == jnp.bfloat16:
        return rounding_einsum(equation, precision, left, right)
    return plain_einsum(equation, precision, left, right)


def plain_einsum(equation: str, precision: jax.lax.Precision | None, left: Operand, right: Operand) -> Operand:
    """Returns the einsum of two operands with a float32 result and the gradient that JAX derives."""
    if device_tuning().matrix_einsums:
        return matrix_einsum(equation, precision, left, right)
    return jnp.einsum(equation, left, right, precision=precision, preferred_element_type=jnp.float32)


def matrix_einsum(equation: str, precision: jax.lax.Precision | None, left: Operand, right: Operand) -> Operand:
    """Returns an einsum that is computed as a matrix product in the form that is fastest on CPUs:
    the left operand is summed over its last axis.

    Dense attention in float32 then takes 0.6 to 0.8 of the time (jaxlib 0.10, AMD EPYC, 128 to 512 positions).

    For bfloat16, jaxlib has CPU kernels only in this form. Other forms become float32 products, or XLA exchanges
    operands and drops transpositions. On a processor with AVX-512 BF16 such a program then fails while it runs
    ('Unsupported element type for DotThunk'). The barriers prevent XLA from changing the form.
    """
    operands, result = equation.split('->')
    first, second = operands.split(',')
    shared = [name for name in first if name in second]
    batch, summed = ([name for name in shared if (name in result) == is_kept] for is_kept in (True, False))
    left_only, right_only = ([name for name in names if name not in shared] for names in (first, second))
    is_ready = list(first) == batch + left_only + summed
    if not is_ready and (left.size > right.size or list(second) == batch + right_only + summed):
        return matrix_einsum(f'{second},{first}->{result}', precision, right, left)
    sizes = dict(zip(first + second, left.shape + right.shape, strict=True))
    kept = [sizes[name] for name in batch]

    def matrices(array: Operand, names: str, *sides: list[str]) -> Operand:
        array = array.transpose([names.index(name) for part in (batch, *sides) for name in part])
        return array.reshape(*kept, *(math.prod(sizes[name] for name in side) for side in sides))

    pair = matrices(left, first, left_only, summed), matrices(right, second, summed, right_only)
    keep = lax.optimization_barrier if left.dtype == jnp.bfloat16 else lambda arrays: arrays
    product = keep(jnp.matmul(*keep(pair), precision=precision, preferred_element_type=jnp.float32))
    names = ''.join(batch + left_only + right_only)
    return product.reshape([sizes[name] for name in names]).transpose([names.index(name) for name in result])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def rounding_einsum(equation: str, precision: jax.lax.Precision | None, left: Operand, right: Operand) -> Operand:
    """Returns the einsum of bfloat16 operands with a float32 result;
    the backward pass rounds the incoming gradient to bfloat16.
    """
    return plain_einsum(equation, precision, left, right)


def _einsum_forward(
    equation: str, precision: Any, left: Operand, right: Operand
) -> tuple[Operand, tuple[Operand, Operand]]:
    return rounding_einsum(equation, precision, left, right), (left, right)


def _einsum_backward(
    equation: str, precision: Any, saved: tuple[Operand, Operand], gradient: Operand
) -> tuple[Operand, Operand]:
    left, right = saved
    operands, result = equation.split('->')
    first, second = operands.split(',')
    gradient = gradient.astype(left.dtype)
    to_left = rounding_einsum(f'{result},{second}->{first}', precision, gradient, right)
    to_right = rounding_einsum(f'{result},{first}->{second}', precision, gradient, left)
    return to_left.astype(left.dtype), to_right.astype(right.dtype)


rounding_einsum.defvjp(_einsum_forward, _einsum_backward)
