"""Matrix products of bfloat16 operands with float32 results, and gradients that are bfloat16 products too."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def float32_einsum(equation: str, left: Array, right: Array, precision: jax.lax.Precision | None = None) -> Array:
    """The einsum of two operands of one dtype, in float32.

    The gradient of a bfloat16 product is rounded to bfloat16 before it is multiplied in turn, as fused kernels do.
    JAX's own rule multiplies a float32 gradient with a bfloat16 operand, for which no hardware has an instruction.
    """
    if left.dtype != jnp.bfloat16:
        return jnp.einsum(equation, left, right, precision=precision, preferred_element_type=jnp.float32)
    return rounding_einsum(equation, precision, left, right)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def rounding_einsum(equation: str, precision: jax.lax.Precision | None, left: Array, right: Array) -> Array:
    """`float32_einsum` of bfloat16 operands."""
    return jnp.einsum(equation, left, right, precision=precision, preferred_element_type=jnp.float32)


def _einsum_forward(equation: str, precision: Any, left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    return rounding_einsum(equation, precision, left, right), (left, right)


def _einsum_backward(equation: str, precision: Any, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    left, right = saved
    operands, result = equation.split('->')
    first, second = operands.split(',')
    gradient = gradient.astype(left.dtype)
    to_left = rounding_einsum(f'{result},{second}->{first}', precision, gradient, right)
    to_right = rounding_einsum(f'{result},{first}->{second}', precision, gradient, left)
    return to_left.astype(left.dtype), to_right.astype(right.dtype)


rounding_einsum.defvjp(_einsum_forward, _einsum_backward)
