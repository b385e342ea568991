"""Sorting by counting numbers with their places, against NumPy; orders and their inverses."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.lsh.sorting import invert, segment_ranks, stable_order, take


def test_numbers_too_large_to_carry_their_place_sort_alike():
    numbers = jax.random.randint(jax.random.key(0), (3, 200), 0, 50)
    assert np.array_equal(stable_order(numbers, 50), stable_order(numbers, 2**31 - 1))
    assert np.array_equal(stable_order(numbers, 50), np.argsort(np.asarray(numbers), axis=-1, kind='stable'))
    large = jax.random.randint(jax.random.key(1), (2, 200), 0, 2**31 - 1)
    large = large.at[:, 50:100].set(large[:, :50])  # digits alike, in the high ones too
    expected = np.argsort(np.asarray(large), axis=-1, kind='stable')
    assert np.array_equal(stable_order(large, 2**31 - 1), expected)


def test_an_order_and_its_inverse_undo_one_another():
    order = np.random.default_rng(0).permuted(np.tile(np.arange(9, dtype=np.int32), (2, 3, 1)), axis=-1)
    x = np.arange(2 * 3 * 9 * 2).reshape(2, 3, 9, 2)
    order = jnp.asarray(order)
    moved = take(jnp.asarray(x), order)
    np.testing.assert_array_equal(moved, np.take_along_axis(x, np.asarray(order)[..., None], axis=2))
    np.testing.assert_array_equal(take(moved, invert(order)), x)


def test_segments_are_ranked_by_number_and_padding_comes_last():
    segments = np.array([[7, 7, 0, 2, 2, 9, 0], [1, 1, 1, 1, 1, 1, 1]], np.int32)
    ranks = np.asarray(segment_ranks(jnp.asarray(segments)))
    assert (ranks[0][segments[0] == 0] == 7).all()
    for row, rank in zip(segments, ranks, strict=True):
        tokens = row > 0
        np.testing.assert_array_equal(np.argsort(rank[tokens], kind='stable'), np.argsort(row[tokens], kind='stable'))
        assert len(set(rank[tokens])) == len(set(row[tokens]))
