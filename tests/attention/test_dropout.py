"""Tests dropout bits: their rate, their independence, and that they depend only on key and position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dropout import dropout, dropout_keep_mask, hash_bits


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


def test_no_key_or_no_rate_means_no_dropout():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
