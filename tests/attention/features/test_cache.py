"""Tests that padding between tokens ends no segment in the cache of sums; attention/test_cache.py tests its outputs."""

import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.features.cache import fill_padding_segments, init_sums
from efficient_attention.attention.linear.definition import ELU, Linear


def test_padding_takes_the_segment_before_it():
    segments = jnp.asarray([[0, 2, 0, 0, 3], [1, 0, 1, 0, 0]])
    np.testing.assert_array_equal(fill_padding_segments(segments, jnp.asarray([7, 9])), [[7, 2, 2, 2, 3], [1] * 5])


def test_it_begins_with_sums_of_zero_of_no_segment():
    cache = init_sums(CacheSpec(Linear(causal=True), 4, 2, 8, 16), 3, ELU)
    assert cache.sums.sums_BGRK.shape == (3, 2, 8, 8) and not cache.sums.sums_BGRK.any()
    assert not cache.sums.normaliser_BGR.any() and not cache.segment_B.any()
