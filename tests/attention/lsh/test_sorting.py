"""Tests sorting by counting against NumPy, and orders against their inverses."""

import jax
import numpy as np

from efficient_attention.attention.lsh.sorting import invert_permutation, segment_ranks, stable_order, take_along_rows


def test_numbers_too_large_to_carry_their_place_sort_alike():
    order_of, rng = jax.jit(stable_order, static_argnums=1), np.random.default_rng(0)
    numbers = rng.integers(0, 50, (3, 200)).astype(np.int32)
    expected = np.argsort(numbers, axis=-1, kind='stable')
    np.testing.assert_array_equal(order_of(numbers, 50), expected)
    np.testing.assert_array_equal(order_of(numbers, 2**31 - 1), expected)
    large = rng.integers(0, 2**31 - 1, (2, 200)).astype(np.int32)
    large[:, 50:100] = large[:, :50]  # Some numbers are equal in all digits, including the high ones.
    np.testing.assert_array_equal(order_of(large, 2**31 - 1), np.argsort(large, axis=-1, kind='stable'))


def test_an_order_and_its_inverse_undo_one_another():
    order = np.random.default_rng(0).permuted(np.tile(np.arange(9, dtype=np.int32), (2, 3, 1)), axis=-1)
    x = np.arange(2 * 3 * 9 * 2).reshape(2, 3, 9, 2)

    @jax.jit
    def there_and_back(x: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        moved = take_along_rows(x, order)
        return moved, take_along_rows(moved, invert_permutation(order))

    moved, back = there_and_back(x, order)
    np.testing.assert_array_equal(moved, np.take_along_axis(x, order[..., None], axis=2))
    np.testing.assert_array_equal(back, x)


def test_segments_are_ranked_by_number_and_padding_comes_last():
    segments = np.array([[7, 7, 0, 2, 2, 9, 0], [1, 1, 1, 1, 1, 1, 1]], np.int32)
    ranks = np.asarray(jax.jit(segment_ranks)(segments))
    assert (ranks[0][segments[0] == 0] == 7).all()
    for row, rank in zip(segments, ranks, strict=True):
        tokens = row > 0
        np.testing.assert_array_equal(np.argsort(rank[tokens], kind='stable'), np.argsort(row[tokens], kind='stable'))
        assert len(set(rank[tokens])) == len(set(row[tokens]))
