"""Sums over keys that stay the same: read by queries of their segment alone, NaN where a row packs several."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.features.fixed_sums import read_fixed_sums, sum_fixed
from efficient_attention.attention.linear.definition import ELU, Linear
from tests.tolerances import assert_close

QUERY, KEY, VALUE = (
    jax.random.normal(jax.random.key(seed), shape)
    for seed, shape in enumerate([(3, 5, 4, 6), (3, 7, 2, 6), (3, 7, 2, 6)])
)
KEY_SEGMENTS = jnp.asarray([[1, 1, 1, 1, 0, 0, 0], [2] * 7, [0] * 7])
QUERY_SEGMENTS = jnp.asarray([[1, 1, 1, 0, 2], [2, 2, 1, 1, 0], [1, 1, 0, 0, 0]])


def test_reading_the_sums_equals_attention():
    """Also of queries that have no key: of another segment, padding, and in a row without keys."""
    found = read_fixed_sums(sum_fixed(KEY, VALUE, KEY_SEGMENTS, ELU), QUERY, QUERY_SEGMENTS)
    options = {'query_segments': QUERY_SEGMENTS, 'key_segments': KEY_SEGMENTS, 'backend': 'reference'}
    assert_close(found, attend(QUERY, KEY, VALUE, Linear(), **options))
    assert not found[0, 3:].any() and not found[2].any()


def test_a_row_that_packs_several_segments_is_nan():
    packed = sum_fixed(KEY, VALUE, KEY_SEGMENTS.at[0, 4].set(2), ELU)
    found = read_fixed_sums(packed, QUERY, QUERY_SEGMENTS)
    np.testing.assert_array_equal(jnp.isnan(found).any(axis=(2, 3))[:2], [[True] * 5, [False] * 5])
