"""Tests dropout bits: their rate, their independence, and that they depend only on key and position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dropout import (
    dropout,
    dropout_keep_mask,
    hash_bits,
    hash_in_index,
    is_kept,
    row_seeds,
    spread_index,
)


def test_mix_is_a_bijection_that_flips_half_of_the_bits():
    run = jax.jit(hash_bits)
    values = np.unique(np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32))
    mixed = np.asarray(run(values))
    assert len(np.unique(mixed)) == len(values)
    for bit in range(32):
        flipped = mixed ^ np.asarray(run(values ^ np.uint32(1 << bit)))
        share = np.unpackbits(flipped.view(np.uint8)).mean()
        assert 0.48 < share < 0.52, bit


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_rate_and_mean(rate: float):
    x = np.ones((8, 64, 128), np.float32)
    out = np.asarray(jax.jit(lambda x, key: dropout(x, rate, key))(x, jax.random.key(1)))
    deviation = 4 * (rate * (1 - rate) / x.size) ** 0.5
    assert abs((out == 0).mean() - rate) < deviation
    assert abs(out.mean() - 1) < deviation / (1 - rate)
    np.testing.assert_allclose(np.unique(out), [0, 1 / (1 - rate)], rtol=1e-6)


def test_neighbouring_elements_rows_and_keys_are_uncorrelated():
    run = jax.jit(lambda key: dropout_keep_mask(key, 0.5, 4, jnp.arange(256), jnp.arange(256)))
    keep, other = (np.asarray(run(jax.random.key(seed))) * 2.0 - 1.0 for seed in range(2))
    off_diagonal = np.tile(~np.eye(256, dtype=bool), (4, 1, 1))
    pairs = [(keep[:, 1:], keep[:, :-1]), (keep[..., 1:], keep[..., :-1]), (keep[1:], keep[:-1]), (keep, other)]
    for first, second in [*pairs, (keep[off_diagonal], keep.swapaxes(1, 2)[off_diagonal])]:
        assert abs((first * second).sum()) < 5 * first.size**0.5


def test_rows_keyed_alone_equal_rows_in_a_batch():
    @jax.jit
    def run(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, keys_B = jnp.ones((6, 5, 7)), jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(6))
        return dropout(x, 0.3, key), dropout(x, 0.3, keys_B), dropout(x[2:4], 0.3, keys_B[2:4])

    whole, by_row, two_rows = jax.device_get(run(jax.random.key(3)))
    np.testing.assert_array_equal(whole, by_row)
    np.testing.assert_array_equal(whole[2:4], two_rows)


def test_a_part_of_the_mask_can_be_drawn_alone():
    @jax.jit
    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        whole = dropout_keep_mask(key, 0.4, 3, jnp.arange(32), jnp.arange(48))
        return whole, dropout_keep_mask(key, 0.4, 3, jnp.arange(8, 16), jnp.arange(16, 48))

    whole, part = jax.device_get(run(jax.random.key(5)))
    np.testing.assert_array_equal(whole[:, 8:16, 16:], part)


def weight_bits(seeds: jax.Array, head: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """Returns the bits of attention weights, one for each element of the broadcast arguments, as kernels hash them."""
    return hash_bits(hash_in_index(hash_in_index(seeds, head), query) + spread_index(key))


def weight_mask(seed: int, rate: float, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Returns the mask [B, H, L, M] of attention weights from indices along each axis."""
    indices = np.meshgrid(*map(np.arange, shape), indexing='ij', sparse=True)

    @jax.jit
    def run(row: jax.Array, head: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
        return is_kept(weight_bits(row_seeds(jax.random.key(seed), shape[0])[row], head, query, key), rate)

    return np.asarray(run(*indices))


def test_weight_bits_give_the_mask_of_all_pairs_in_any_tiles():
    rate, (batch, heads, queries, keys) = 0.3, (2, 3, 24, 40)

    @jax.jit
    def run(rng: jax.Array) -> tuple[jax.Array, jax.Array]:
        whole = dropout_keep_mask(rng, rate, batch, jnp.arange(heads), jnp.arange(queries), jnp.arange(keys))
        seeds_B = row_seeds(rng, batch)
        tiles = [
            is_kept(
                weight_bits(
                    seeds_B[row, None, None],
                    jnp.int32(head),
                    query + jnp.arange(8)[:, None],
                    key + jnp.arange(size)[None],
                ),
                rate,
            )
            for size in (10, 40)
            for row in range(batch)
            for head in range(heads)
            for query in range(0, queries, 8)
            for key in range(0, keys, size)
        ]
        small, large = tiles[: 2 * 3 * 3 * 4], tiles[2 * 3 * 3 * 4 :]
        joined = [
            jnp.stack(part).reshape(batch, heads, 3, -1, 8, size).swapaxes(3, 4).reshape(whole.shape)
            for part, size in ((small, 10), (large, 40))
        ]
        return whole, jnp.stack(joined)

    whole, joined = jax.device_get(run(jax.random.key(7)))
    assert 0.6 < whole.mean() < 0.8
    np.testing.assert_array_equal(joined[0], whole)
    np.testing.assert_array_equal(joined[1], whole)


@pytest.mark.parametrize('rate', [0.1, 0.5])
def test_weight_masks_have_the_rate_along_each_coordinate(rate: float):
    """The share of kept weights at each index varies like the mean of independent draws."""
    keep = weight_mask(11, rate, (8, 8, 128, 128))
    for axis, size in enumerate(keep.shape):
        shares = keep.mean(axis=tuple({0, 1, 2, 3} - {axis}))
        deviations = (shares - (1 - rate)) / (rate * (1 - rate) * size / keep.size) ** 0.5
        assert np.abs(deviations).max() < 5.0, axis
        assert 0.3 < (deviations**2).sum() / size < 3.0, axis


@pytest.mark.parametrize('axis', range(4))
def test_weight_masks_are_independent_across_each_coordinate(axis: int):
    """At any distance along a coordinate, two masks agree in half of the weights, and so do their products."""
    signs = weight_mask(13, 0.5, (8, 8, 64, 64)) * 2.0 - 1.0
    moved = np.moveaxis(signs, axis, 0)
    for distance in (1, 2, 3, 4, 7, 8, 16, 32, 63):
        if distance >= len(moved):
            continue
        first, second = moved[distance:], moved[:-distance]
        assert abs((first * second).sum()) < 5 * first.size**0.5, distance
        agreed = (first * second)[..., 1:, 1:] * (first * second)[..., :-1, :-1]
        assert abs(agreed.sum()) < 5 * agreed.size**0.5, distance


def test_no_key_or_no_rate_means_no_dropout():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
