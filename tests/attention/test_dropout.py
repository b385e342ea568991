"""Dropout bits: their rate, their independence, and that they depend on key and position alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dropout import dropout, keep_mask, mix


def test_mix_is_a_bijection_that_flips_half_of_the_bits():
    values = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    assert len(np.unique(np.asarray(mix(jnp.asarray(np.unique(values)))))) == len(np.unique(values))
    for bit in range(32):
        flipped = np.asarray(mix(jnp.asarray(values)) ^ mix(jnp.asarray(values ^ np.uint32(1 << bit))))
        share = np.unpackbits(flipped.view(np.uint8)).mean()
        assert 0.48 < share < 0.52, bit


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_rate_and_mean(rate: float):
    x = jnp.ones((8, 64, 128))
    out = np.asarray(dropout(x, rate, jax.random.key(1)))
    deviation = 4 * (rate * (1 - rate) / x.size) ** 0.5
    assert abs((out == 0).mean() - rate) < deviation
    assert abs(out.mean() - 1) < deviation / (1 - rate)
    np.testing.assert_allclose(np.unique(out), [0, 1 / (1 - rate)], rtol=1e-6)


def test_neighbouring_elements_rows_and_keys_are_uncorrelated():
    keep = np.asarray(keep_mask(jax.random.key(0), 0.5, 4, jnp.arange(256), jnp.arange(256))) * 2.0 - 1.0
    other = np.asarray(keep_mask(jax.random.key(1), 0.5, 4, jnp.arange(256), jnp.arange(256))) * 2.0 - 1.0
    off_diagonal = np.tile(~np.eye(256, dtype=bool), (4, 1, 1))
    pairs = [(keep[:, 1:], keep[:, :-1]), (keep[..., 1:], keep[..., :-1]), (keep[1:], keep[:-1]), (keep, other)]
    for first, second in [*pairs, (keep[off_diagonal], keep.swapaxes(1, 2)[off_diagonal])]:
        assert abs((first * second).sum()) < 5 * first.size**0.5


def test_rows_keyed_alone_equal_rows_in_a_batch():
    key, x = jax.random.key(3), jnp.ones((6, 5, 7))
    keys_B = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(6))
    whole = dropout(x, 0.3, key)
    np.testing.assert_array_equal(whole, dropout(x, 0.3, keys_B))
    np.testing.assert_array_equal(whole[2:4], dropout(x[2:4], 0.3, keys_B[2:4]))


def test_a_part_of_the_mask_can_be_drawn_alone():
    key = jax.random.key(5)
    whole = keep_mask(key, 0.4, 3, jnp.arange(32), jnp.arange(48))
    part = keep_mask(key, 0.4, 3, jnp.arange(8, 16), jnp.arange(16, 48))
    np.testing.assert_array_equal(whole[:, 8:16, 16:], part)


def test_no_key_or_no_rate_means_no_dropout():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
