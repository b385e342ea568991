"""Tests properties that only entmax has; test_threshold.py compares its weights and gradients."""

import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.distributions.threshold import entmax


def test_weights_are_squares_above_a_threshold():
    """The square roots of two weights differ by half of the difference of their logits (Peters et al. 2019, equation
    8).
    """
    z = np.asarray([0.9, 0.4, -0.2, -9.0], np.float32)
    weights, lse = entmax(jnp.asarray(z)[None, None, None], jnp.ones((1, 1, 1, 1), bool))
    roots = np.sqrt(np.asarray(weights)[0, 0, 0])
    np.testing.assert_allclose(np.diff(roots[:3]), np.diff(z[:3]) / 2, atol=1e-6)
    assert roots[3] == 0.0 and lse is None and abs((roots**2).sum() - 1.0) < 1e-6
