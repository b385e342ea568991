"""A sub-layer of which a bias is left."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.constant import Constant


def test_it_adds_its_bias_everywhere_and_reads_nothing():
    module = Constant(ModelConfig(width=4, heads=2))
    module.bias[...] = jnp.arange(4.0)
    x_BLD = jax.random.normal(jax.random.key(0), (2, 3, 4))
    np.testing.assert_array_equal(module(x_BLD), np.broadcast_to(np.arange(4.0), (2, 3, 4)))
    assert not jax.grad(lambda x_BLD: module(x_BLD).sum())(x_BLD).any()
