"""Tests that the reference backend does not depend on the input dtype; test_contract.py tests its results."""

import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.cells import quick


def test_products_are_float32_whatever_the_input():
    arrays = np.random.default_rng(1).normal(size=(3, 1, 33, 2, 8)).astype(jnp.bfloat16)
    run = quick(lambda q, k, v: attend(q, k, v, Softmax(), backend='reference'))
    exact, rounded = run(*arrays.astype(np.float32)), run(*arrays)
    np.testing.assert_array_equal(rounded, np.asarray(exact).astype(jnp.bfloat16))
