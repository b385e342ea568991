"""Tests the activations against their formulas in float64."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.layer import ACTIVATIONS
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS

FORMULAS = {
    'gelu_tanh': lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    'gelu_erf': lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    'gelu_sigmoid': lambda x: x / (1 + math.exp(-1.702 * x)),
    'relu': lambda x: max(x, 0.0),
    'silu': lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_formula(name: str):
    x = np.linspace(-5, 5, 101)
    expected = [FORMULAS[name](value) for value in x]
    np.testing.assert_allclose(ACTIVATION_FUNCTIONS[name](jnp.asarray(x, jnp.float32)), expected, atol=2e-6)


def test_the_three_gelus_differ():
    x = jnp.linspace(-3, 3, 50)
    values = [ACTIVATION_FUNCTIONS[name](x) for name in ('gelu_tanh', 'gelu_erf', 'gelu_sigmoid')]
    assert 1e-5 < jnp.abs(values[0] - values[1]).max() < 1e-2
    assert 1e-3 < jnp.abs(values[1] - values[2]).max() < 5e-2
