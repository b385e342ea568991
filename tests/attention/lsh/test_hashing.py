"""Tests angular hashing: the nearest direction, several rotations as one number, and blocks of positions."""

import jax
import numpy as np

from efficient_attention.attention.lsh import hashing

RNG = jax.random.key(3)
draw_rotations = jax.jit(hashing.draw_rotations, static_argnums=(1, 2, 3, 4))
hash_buckets = jax.jit(hashing.hash_buckets, static_argnames='at_once')


def vectors(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_buckets_are_the_nearest_directions():
    q = vectors(2, 30, 3, 8)
    (rotation,) = draw_rotations(RNG, 6, 2, 3, 8)
    projected = np.einsum('BLHK,HKTb->BHTLb', q, rotation)
    expected = np.concatenate([projected, -projected], axis=-1).argmax(axis=-1)
    assert np.array_equal(hash_buckets(q, [rotation]), expected)
    assert np.array_equal(hash_buckets(np.float32(7.0) * q, [rotation]), expected)
    opposite = np.where(expected < 3, expected + 3, expected - 3)
    assert np.array_equal(hash_buckets(-q, [rotation]), opposite)


def test_two_rotations_make_one_bucket_number():
    assert hashing.factor_bucket_count(128) == (128,)
    assert hashing.factor_bucket_count(512) == (32, 16) and hashing.factor_bucket_count(1024) == (32, 32)
    q = vectors(1, 500, 1, 16)
    rotations = draw_rotations(RNG, 512, 2, 1, 16)
    buckets = np.asarray(hash_buckets(q, rotations))
    first, second = (np.asarray(hash_buckets(q, [rotation])) for rotation in rotations)
    assert np.array_equal(buckets, first + 32 * second)
    assert 0 <= buckets.min() and buckets.max() < 512 and len(np.unique(buckets)) > 150


def test_a_bucket_number_is_in_range_whatever_the_input():
    for value in (0.0, np.nan, np.inf):
        x = np.full((1, 3, 1, 4), value, np.float32)
        buckets = np.asarray(hash_buckets(x, draw_rotations(RNG, 8, 2, 1, 4)))
        assert (buckets >= 0).all() and (buckets < 8).all()


def test_hashing_in_blocks_gives_the_same_buckets():
    q = vectors(2, 50, 2, 4)
    rotations = draw_rotations(jax.random.key(1), 256, 3, 2, 4)
    whole = hash_buckets(q, rotations)
    np.testing.assert_array_equal(hash_buckets(q, rotations, at_once=16), whole)
