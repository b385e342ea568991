"""Tests of gradients as scores of tokens, on small functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from efficient_attention.errors import RunError
from efficient_attention.inference.input_gradients import GradientTimesInput, IntegratedGradients

X = jax.device_put(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))
BASELINE = jnp.zeros_like(X)


def linear(x_LD: Array, weights_LD: Array) -> Array:
    return (x_LD * weights_LD).sum()


def bent(x_LD: Array) -> Array:
    return jnp.tanh(3.0 * x_LD).sum() * jax.nn.softmax(x_LD.sum(1))[0] + jax.nn.relu(x_LD).sum()


def test_both_are_exact_for_a_linear_function():
    weights = 2.0 * X + 1.0
    expected = np.asarray((X * weights).sum(1))
    np.testing.assert_allclose(GradientTimesInput(linear)(X, weights), expected, rtol=1e-5)
    found = IntegratedGradients(linear)(X, BASELINE, weights)
    np.testing.assert_allclose(found.scores_L, expected, rtol=1e-5)
    assert found.change == pytest.approx(float(linear(X, weights)), rel=1e-5)


def test_integrated_gradients_add_up_to_the_change():
    found = IntegratedGradients(bent)(X, BASELINE)
    assert found.change == pytest.approx(float(bent(X) - bent(BASELINE)), rel=1e-5)
    assert found.scores_L.sum() == pytest.approx(found.change, rel=0.01)
    assert found.points >= 16


def test_tokens_that_are_equal_to_the_baseline_get_nothing():
    baseline = BASELINE.at[1:3].set(X[1:3])
    scores = IntegratedGradients(bent)(X, baseline).scores_L
    assert not scores[1:3].any() and scores[0] and scores[3]


def test_a_function_that_jumps_cannot_add_up():
    with pytest.raises(RunError, match='^integrated gradients sum to 0, but the output changes by 1$'):
        IntegratedGradients(lambda x_LD: jnp.where(x_LD.sum() > 0, 1.0, 0.0))(jnp.ones((2, 2)), jnp.zeros((2, 2)))
