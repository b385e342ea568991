"""Tests the search of the largest of many numbers without sorting against a search with sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.pruning.largest_entries import (
    kth_largest,
    largest_entries_mask,
    largest_entries_mask_per_layer,
)

FIND = jax.jit(lambda arrays, count: largest_entries_mask(arrays, count))


def by_sorting(x: np.ndarray, count: int) -> np.ndarray:
    """Returns a mask of the `count` largest numbers; of equal numbers the first ones are taken."""
    mask = np.zeros(x.size, bool)
    mask[np.argsort(-x.ravel(), kind='stable')[:count]] = True
    return mask.reshape(x.shape)


@pytest.mark.parametrize('decimals', [1, 9], ids=['with equals', 'all different'])
def test_it_is_what_sorting_finds(decimals: int):
    x = np.random.default_rng(0).normal(size=(37, 29)).round(decimals).astype(np.float32)
    for count in (0, 1, 2, 500, x.size - 1, x.size):
        np.testing.assert_array_equal(FIND([jnp.asarray(x)], jnp.int32(count))[0], by_sorting(x, count))
        if count:
            threshold = float(kth_largest([jnp.asarray(x)], jnp.int32(count)))
            reached = int((x >= threshold - 1e-37).sum())  # A processor may treat the smallest numbers as 0.
            assert reached >= count and (decimals == 1 or reached == count)


def test_numbers_of_every_size_and_sign():
    x = np.array([0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0, -1.0, 1e-30, -1e-30, 0.0], np.float32)
    usual = np.array(
        [0.0, 0.0, 0.0, 0.0, 3e38, -3e38, 1.0, -1.0, 1e-30, -1e-30, 0.0], np.float32
    )  # as XLA's CPU code reads them
    for count in range(len(x) + 1):
        assert int(FIND([jnp.asarray(x)], jnp.int32(count))[0].sum()) == count
        np.testing.assert_array_equal(FIND([jnp.asarray(usual)], jnp.int32(count))[0], by_sorting(usual, count))


def test_several_arrays_are_compared_with_one_another():
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape).round(1).astype(np.float32) for shape in ((3, 5), (40,), (2, 2, 7))]
    whole = np.concatenate([x.ravel() for x in arrays])
    found = FIND([jnp.asarray(x) for x in arrays], jnp.int32(31))
    np.testing.assert_array_equal(np.concatenate([np.ravel(x) for x in found]), by_sorting(whole, 31))


def test_each_layer_has_its_own():
    x = np.random.default_rng(2).normal(size=(3, 4, 6)).round(1).astype(np.float32)
    found = jax.jit(largest_entries_mask_per_layer)(jnp.asarray(x), jnp.int32(5))
    np.testing.assert_array_equal(found, np.stack([by_sorting(one, 5) for one in x]))
