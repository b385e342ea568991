"""Tests properties that only sparsemax has; test_threshold.py compares its weights and gradients."""

import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.distributions.threshold import sparsemax


def test_two_keys_share_by_the_difference_of_their_logits():
    """The weight of the first of two keys is (z1 - z2 + 1) / 2, cut at 0 and 1 (Martins & Astudillo 2016,
    section 2.3).
    """
    differences = np.linspace(-2.0, 2.0, 9)
    z = jnp.asarray(np.stack([differences, np.zeros(9)], -1), jnp.float32)[None, None]
    weights, lse = sparsemax(z, jnp.ones((1, 1, 1, 1), bool))
    np.testing.assert_allclose(weights[0, 0, :, 0], np.clip((differences + 1) / 2, 0, 1), atol=1e-6)
    assert lse is None
