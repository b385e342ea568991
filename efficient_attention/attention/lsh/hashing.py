"""Angular hashing for LSH attention: a query's bucket in a round is the random direction that is nearest to the query.

Axes: b random directions of a rotation; each direction x gives two buckets, x and -x.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

# More buckets than this number are hashed by two combined rotations; one would cost more than attention.
MOST_BUCKETS = 128
HASHED_AT_ONCE = 4096  # number of positions that are hashed together


def factor_bucket_count(buckets: int) -> tuple[int, ...]:
    """Returns even factors of the number of buckets: the number itself up to 128,
    else two factors near its square root.

    The product of the factors is at most `buckets` and may be smaller: 130 gives 16 x 8.
    """
    if buckets <= MOST_BUCKETS:
        return (buckets,)
    first = 2 ** math.ceil(math.log2(math.sqrt(buckets)))
    return first, 2 * (buckets // (2 * first))


def draw_rotations(rng: Array, buckets: int, rounds: int, heads: int, width: int) -> list[Float[Array, 'H K T _']]:
    """Returns sampled Gaussian directions [H, K, T, b] for each factor of the number
    of buckets; all batch rows share them.

    The axis b has half as many entries as the factor.
    """
    factors = factor_bucket_count(buckets)
    return [
        jax.random.normal(key, (heads, width, rounds, factor // 2), jnp.float32)
        for key, factor in zip(jax.random.split(rng, len(factors)), factors, strict=True)
    ]


def hash_buckets(
    q_BLHK: Float[Array, 'B L H K'], rotations_HKTb: list[Float[Array, 'H K T _']], at_once: int = HASHED_AT_ONCE
) -> Int[Array, 'B H T L']:
    """Returns the bucket of each query in each hash round: argmax [x R; -x R]
    for a random rotation R, combined for several R.

    With several R the results are the digits of one number (mixed radix). Vectors at a small angle share a bucket more
    often than others (Andoni et al. 2015, arXiv 1509.02897). The number of directions grows with the length, so the
    memory of all projections would grow faster than the length. Only `at_once` positions are therefore hashed together.
    """
    length = q_BLHK.shape[1]
    if length <= at_once:
        return hash_block(q_BLHK, rotations_HKTb)
    padded_BLHK = jnp.pad(q_BLHK, ((0, 0), (0, -length % at_once), (0, 0), (0, 0)))
    blocks = padded_BLHK.reshape(q_BLHK.shape[0], -1, at_once, *q_BLHK.shape[2:]).swapaxes(0, 1)
    buckets = jax.lax.map(lambda block: hash_block(block, rotations_HKTb), blocks)  # int [blocks, B, H, T, at_once]
    buckets = jnp.moveaxis(buckets, 0, 3)
    return buckets.reshape(*buckets.shape[:3], -1)[..., :length]


def hash_block(q_BLHK: Float[Array, 'B L H K'], rotations_HKTb: list[Float[Array, 'H K T _']]) -> Int[Array, 'B H T L']:
    """Returns the bucket of each query in each hash round, computed for all positions at once."""
    buckets_BHTL, base = None, 1
    x_BLHK = jax.lax.stop_gradient(q_BLHK).astype(jnp.float32)
    for rotation_HKTb in rotations_HKTb:
        projected_BHTbL = jnp.einsum('BLHK,HKTb->BHTbL', x_BLHK, rotation_HKTb, precision=jax.lax.Precision.HIGHEST)
        digits_BHTL = signed_argmax(projected_BHTbL)
        buckets_BHTL = digits_BHTL if buckets_BHTL is None else buckets_BHTL + jnp.int32(base) * digits_BHTL
        base *= 2 * rotation_HKTb.shape[-1]
    assert buckets_BHTL is not None
    return buckets_BHTL


def signed_argmax(projected_BHTbL: Array) -> Int[Array, 'B H T L']:
    """Returns argmax over [x, -x] along axis b, computed by two plain reductions,
    because a CPU does not vectorise argmax.
    """
    count = projected_BHTbL.shape[-2]
    largest_BHT1L = jnp.abs(projected_BHTbL).max(axis=-2, keepdims=True)
    numbers_BHTbL = jax.lax.broadcasted_iota(jnp.int32, projected_BHTbL.shape, projected_BHTbL.ndim - 2)
    # For NaN neither x nor -x is the largest; the last bucket is then returned, so that buckets stay in range.
    mirrored_BHTbL = jnp.where(-projected_BHTbL == largest_BHT1L, numbers_BHTbL + count, 2 * count - 1)
    return jnp.where(projected_BHTbL == largest_BHT1L, numbers_BHTbL, mirrored_BHTbL).min(axis=-2)
