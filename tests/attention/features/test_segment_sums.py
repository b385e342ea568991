"""Tests sums of the segment that is still open: how two stretches of positions combine, and each segment's scale."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.features.key_sums import add_keys, bring_to_common_scale, zero_key_sums
from efficient_attention.attention.features.segment_sums import SegmentSums, combine_sums, subtract_segment_maximum


def stretch(segment: int, is_alone: bool) -> SegmentSums:
    """Returns the sums of one key with feature 1 and value 1, in each of two rows."""
    ones = jnp.ones((2, 1, 1, 1))
    sums, features = bring_to_common_scale(zero_key_sums(2, 1, 1, 1), 0.0 * ones)
    return SegmentSums(add_keys(sums, features, ones), jnp.full(2, segment), jnp.full(2, is_alone))


def test_sums_go_on_only_where_the_same_segment_fills_the_second_stretch():
    joined_with = jax.jit(lambda segment, is_alone: combine_sums(stretch(3, True), stretch(segment, is_alone)))
    for segment, is_alone, count in ((3, True, 2.0), (3, False, 1.0), (4, True, 1.0)):
        joined = joined_with(segment, is_alone)
        np.testing.assert_array_equal(joined.sums.normaliser_BGR, count)
        assert joined.segment_B.tolist() == [segment] * 2 and joined.is_alone_B.tolist() == [count == 2.0] * 2


def test_each_segment_has_the_level_of_its_largest_key():
    logs = np.asarray([1.0, 5.0, 90.0, 80.0], np.float32)[None, None, :, None]
    segments = np.asarray([[1, 1, 2, 2]])
    level = jax.jit(lambda *x: subtract_segment_maximum(zero_key_sums(1, 1, 1, 1), *x))
    _, relative, levels = jax.device_get(level(logs, segments, segments == 1))
    np.testing.assert_array_equal(levels[0, 0], [5.0, 5.0, 90.0, 90.0])
    np.testing.assert_array_equal(relative[0, 0, :, 0], [-4.0, 0.0, 0.0, -10.0])
