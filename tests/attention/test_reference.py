"""The reference backend: its independence of the input dtype; that it is right is tested in test_contract.py."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.softmax.definition import Softmax


def test_products_are_float32_whatever_the_input():
    q, k, v = (jax.random.normal(key, (1, 33, 2, 8), jnp.bfloat16) for key in jax.random.split(jax.random.key(1), 3))
    exact = attend(*(x.astype(jnp.float32) for x in (q, k, v)), Softmax(), backend='reference')
    rounded = attend(q, k, v, Softmax(), backend='reference')
    np.testing.assert_array_equal(rounded, exact.astype(jnp.bfloat16))
