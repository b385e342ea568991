"""Tests hard attention: all weight is on the allowed key of the largest logit, and logits have no gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.distributions.hard import hardmax


def test_the_largest_allowed_logit_has_all_weight_and_no_gradient():
    z = jnp.asarray([[[[0.3, 2.0, 2.0, -1.0], [5.0, 1.0, 4.0, 4.5]]]])
    allowed = jnp.asarray([[[[True] * 4, [False, True, True, False]]]])
    np.testing.assert_array_equal(hardmax(z, allowed)[0], [[[[0, 1, 0, 0], [0, 0, 1, 0]]]])
    assert not jax.grad(lambda z: (hardmax(z, allowed)[0] * jnp.arange(4.0)[None, None, None]).sum())(z).any()
