"""Tests dense weights, the softmax over allowed keys; test_contract.py tests dropout and sums of values."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.dense_attention import MASKED, masked_softmax, slot_softmax, undivided_softmax
from tests.tolerances import assert_close


def test_masked_softmax_sums_to_one_over_allowed_keys_alone():
    logits = jax.random.normal(jax.random.key(0), (1, 1, 3, 5)) * 30
    allowed = jnp.asarray([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)[None, None]
    weights, lse = masked_softmax(logits, allowed)
    np.testing.assert_allclose(weights.sum(-1)[0, 0], [1, 0, 1], atol=1e-6)
    assert not weights[~allowed].any() and lse[0, 0, 1] == MASKED
    assert_close(lse[0, 0, 2], jax.nn.logsumexp(logits[0, 0, 2]))


def test_huge_logits_stay_finite():
    logits = jnp.asarray([[[[1e30, -1e30, 1e30]]]])
    weights, lse = masked_softmax(logits, jnp.ones((1, 1, 1, 3), bool))
    np.testing.assert_allclose(weights[0, 0, 0], [0.5, 0, 0.5])
    assert jnp.isfinite(lse).all()


def test_undivided_weights_are_those_of_softmax_times_their_divisor():
    rng = np.random.default_rng(3)
    logits_BHLR = jnp.asarray(rng.standard_normal((2, 3, 4, 5)) * 30.0, jnp.float32)
    allowed_BHLR = jnp.asarray(rng.random((2, 3, 4, 5)) < 0.5).at[0, 0, 0].set(False)
    for allowed in (None, allowed_BHLR):
        found_BHLR, divisor_BHL1 = undivided_softmax(logits_BHLR, allowed)
        assert_close(found_BHLR / divisor_BHL1, slot_softmax(logits_BHLR, allowed), within=1e-6)
        assert (divisor_BHL1 >= 1.0).all()
    assert not found_BHLR[0, 0, 0].any()
