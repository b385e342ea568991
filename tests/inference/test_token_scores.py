"""What may follow a text by rules."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.inference.token_scores import log_softmax


def test_log_probabilities_of_large_logits_are_as_exact_as_of_small_ones():
    logits_bV = jnp.asarray(np.random.default_rng(0).normal(size=(3, 50)) * 100 - 3000, jnp.float32)
    np.testing.assert_allclose(log_softmax(logits_bV), jax.nn.log_softmax(logits_bV), rtol=1e-6, atol=1e-6)
