"""Tests the dense backend; test_attend.py tests that it equals the reference."""

import jax
import jax.numpy as jnp

from efficient_attention.attention.attend import attend
from efficient_attention.attention.softmax.definition import Softmax


def test_products_stay_in_the_input_dtype():
    """The compiled program multiplies bfloat16 operands and sums in float32."""
    q = jnp.ones((1, 16, 2, 8), jnp.bfloat16)
    program = jax.jit(lambda q: attend(q, q, q, Softmax(), backend='dense')).lower(q).as_text()
    products = [line for line in program.splitlines() if 'dot_general' in line]
    assert len(products) == 2
    assert all(
        line.count('xbf16>') == 2 and line.rstrip().split('loc(')[0].rstrip().endswith('xf32>') for line in products
    )
