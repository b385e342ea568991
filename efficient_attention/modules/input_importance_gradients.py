"""Defines matrix products whose backward pass returns how much each input is used, in place of the kernel's gradient.

The gradient of a kernel is replaced by the sum of squares of each input, the gradient of a table by look-up counts. One
backward pass collects these sums for every kernel, including kernels of layers under a scan. A token counts only if its
output affects the loss, so padding does not count.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int


@jax.custom_vjp
def input_squares_matmul(x: Float[Array, '... I'], kernel_IO: Array) -> Float[Array, '... O']:
    """Returns x [..., I] times kernel [I, O]; the kernel's gradient is replaced by the sum of squares of each input.

    The sums are repeated in all columns of the kernel's gradient [I, O].
    """
    return lax.dot_general(x, kernel_IO, (((x.ndim - 1,), (0,)), ((), ())))


def _product_forward(x: Float[Array, '... I'], kernel_IO: Array) -> tuple[Array, Any]:
    return input_squares_matmul(x, kernel_IO), (x, kernel_IO)


def _product_backward(saved: Any, gradient: Float[Array, '... O']) -> tuple[Array, Array]:
    x, kernel_IO = saved
    to_x = lax.dot_general(gradient, kernel_IO, (((gradient.ndim - 1,), (1,)), ((), ())))
    counted = jnp.where(is_token_used(gradient), jnp.square(x), jnp.zeros_like(x))
    squares_I = counted.sum(tuple(range(x.ndim - 1)))
    return to_x, jnp.broadcast_to(squares_I[:, None], kernel_IO.shape)


input_squares_matmul.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def counted_table_rows(table_VE: Array, numbers: Int[Array, '...']) -> Float[Array, '... E']:
    """Returns rows of a table [V, E]; the backward pass replaces each row's gradient by how often the row was looked
    up.
    """
    return jnp.take(table_VE, numbers, axis=0)


def _rows_forward(table_VE: Array, numbers: Int[Array, '...']) -> tuple[Array, Any]:
    return counted_table_rows(table_VE, numbers), (table_VE, numbers)


def _rows_backward(saved: Any, gradient: Float[Array, '... E']) -> tuple[Array, None]:
    table_VE, numbers = saved
    times_V = jnp.zeros(table_VE.shape[0], table_VE.dtype)
    times_V = times_V.at[numbers.ravel()].add(is_token_used(gradient).ravel().astype(table_VE.dtype))
    return jnp.broadcast_to(times_V[:, None], table_VE.shape), None


counted_table_rows.defvjp(_rows_forward, _rows_backward)


def is_token_used(gradient: Float[Array, '... O']) -> Array:
    """Returns a mask [..., 1] of the tokens that affect the loss, which are the tokens whose gradient is not zero."""
    return (gradient != 0.0).any(axis=-1, keepdims=True)
