"""Tests the sorting of packed rows: equal segments become neighbours in their old order, and unsorting restores the
row.
"""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.features.segment_sorting import has_one_segment, permute_positions, sort_segments

SEGMENTS = np.asarray([[2, 1, 2, 0, 1, 2], [3, 3, 3, 3, 0, 0]], np.int32)
moved_by = jax.jit(permute_positions)


def test_segments_keep_their_order_and_come_back():
    order = jax.device_get(jax.jit(lambda rows: sort_segments(rows, rows, True))(SEGMENTS))
    np.testing.assert_array_equal(order.segments_BN, np.sort(SEGMENTS, axis=1))
    np.testing.assert_array_equal(order.query_source_BN[0], [3, 1, 4, 0, 2, 5])
    x = np.arange(24, dtype=np.float32).reshape(2, 6, 1, 2)
    moved = moved_by(x, order.query_source_BN, order.query_slots_BL)
    np.testing.assert_array_equal(moved[0], x[0, order.query_source_BN[0]])
    np.testing.assert_array_equal(moved_by(moved, order.query_slots_BL, order.query_source_BN), x)
    places = jnp.asarray(order.query_source_BN), jnp.asarray(order.query_slots_BL)
    gradient = jax.jit(jax.grad(lambda x: (permute_positions(x, *places) ** 2).sum()))(x)
    np.testing.assert_array_equal(gradient, 2 * x)


def test_a_key_stands_before_the_query_of_its_number_where_order_counts():
    rows = SEGMENTS[:1, :3]
    order = jax.jit(lambda *sides: sort_segments(*sides, True))(rows, rows + 0)
    np.testing.assert_array_equal(order.segments_BN[0], [1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(order.key_source_BN[0], [1, -1, 0, -1, 2, -1])
    np.testing.assert_array_equal(order.query_source_BN[0], [-1, 1, -1, 0, -1, 2])


def test_one_segment_and_padding_are_told_from_packed_rows():
    has_one = jax.jit(has_one_segment)
    assert has_one(SEGMENTS[1:], SEGMENTS[1:]) and not has_one(SEGMENTS, SEGMENTS)
    assert not has_one(SEGMENTS[1:], SEGMENTS[1:] + 1)
