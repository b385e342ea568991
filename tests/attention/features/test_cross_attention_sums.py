"""Tests sums over fixed keys: queries read the sums of their segment only, and get NaN where a row packs
several texts.
"""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.features.cross_attention_sums import read_cross_sums, sum_cross_keys
from efficient_attention.attention.linear.definition import ELU, Linear
from tests.attention.cells import quick
from tests.tolerances import assert_close

QUERY, KEY, VALUE = (
    np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    for seed, shape in enumerate([(3, 5, 4, 6), (3, 7, 2, 6), (3, 7, 2, 6)])
)
KEY_SEGMENTS = np.asarray([[1, 1, 1, 1, 0, 0, 0], [2] * 7, [0] * 7], np.int32)
QUERY_SEGMENTS = np.asarray([[1, 1, 1, 0, 2], [2, 2, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32)


@quick
def read(*keys: jax.Array) -> jax.Array:
    return read_cross_sums(sum_cross_keys(*keys, ELU), jnp.asarray(QUERY), jnp.asarray(QUERY_SEGMENTS))


def test_reading_the_sums_equals_attention():
    """Some queries have no key: queries of another segment, padding, and queries in a row without keys."""
    found = np.asarray(read(KEY, VALUE, KEY_SEGMENTS))
    options = {'query_segments': QUERY_SEGMENTS, 'key_segments': KEY_SEGMENTS, 'backend': 'reference'}
    assert_close(found, quick(lambda *x: attend(*x, Linear(), **options))(QUERY, KEY, VALUE))
    assert not found[0, 3:].any() and not found[2].any()


def test_a_row_that_packs_several_segments_is_nan():
    packed = KEY_SEGMENTS.copy()
    packed[0, 4] = 2
    found = read(KEY, VALUE, packed)
    np.testing.assert_array_equal(np.isnan(found).any(axis=(2, 3))[:2], [[True] * 5, [False] * 5])
