"""Tests that merged softmax sums over subsets of keys equal the sums over all keys."""

import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.lsh.forward_pass import SoftmaxSums, merge_sums


def sums_of(logits: np.ndarray, values: np.ndarray) -> SoftmaxSums:
    """Returns the softmax sums of one query over keys with logits [M] and values [M, K]."""
    weights = np.exp(logits - logits.max())
    return SoftmaxSums(*(jnp.asarray(x, jnp.float32) for x in (weights @ values, logits.max(), weights.sum())))


def test_merged_sums_are_those_over_all_keys():
    rng = np.random.default_rng(0)
    logits, values = 5.0 * rng.standard_normal(9), rng.standard_normal((9, 3))
    merged = merge_sums([sums_of(logits[keys], values[keys]) for keys in (slice(0, 2), slice(2, 7), slice(7, 9))])
    for found, expected in zip(merged, sums_of(logits, values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_sums_without_a_key_change_nothing():
    some = sums_of(np.array([-3.0, 1.0]), np.eye(2))
    none = SoftmaxSums(jnp.zeros(2), jnp.float32(MASKED), jnp.float32(0.0))
    for found, expected in zip(merge_sums([none, some]), some, strict=True):
        np.testing.assert_array_equal(found, expected)
