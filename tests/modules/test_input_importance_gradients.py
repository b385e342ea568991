"""Tests gradients that measure how much each input of a kernel is used: sums of squares and counts of weighted
tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.modules.input_importance_gradients import counted_table_rows, input_squares_matmul
from tests.tolerances import assert_close

MATTERS = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32)  # The weights of tokens.


def test_a_kernel_s_gradient_has_the_squares_of_what_enters_it():
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(4, 5)).astype(np.float32)

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return (input_squares_matmul(x, kernel) * MATTERS[..., None]).sum()

    to_x, to_kernel = jax.jit(jax.grad(loss, (0, 1)))(x, kernel)
    assert_close(to_x, np.broadcast_to(MATTERS[..., None] * kernel.sum(-1), x.shape))
    squares = (MATTERS[..., None] * x**2).sum((0, 1))
    assert_close(to_kernel, np.broadcast_to(squares[:, None], kernel.shape))
    assert_close(input_squares_matmul(x, kernel), x @ kernel)


def test_a_table_s_gradient_counts_how_often_a_row_is_read():
    table, numbers = jnp.arange(12.0).reshape(4, 3), jnp.array([[1, 3, 2], [3, 0, 1]])
    found = jax.grad(lambda table: (counted_table_rows(table, numbers) * MATTERS[..., None]).sum())(table)
    assert_close(found, np.broadcast_to(np.float32([[0], [1], [0], [2]]), (4, 3)))
