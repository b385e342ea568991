"""Angular hashing: the bucket of each query in each round, by its nearest of random directions."""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

MOST_BUCKETS = 128  # beyond it one rotation would cost more than the attention, so two are combined
HASHED_AT_ONCE = 4096  # positions


def bucket_factors(buckets: int) -> tuple[int, ...]:
    """The even numbers of buckets whose product replaces `buckets`: itself up to 128, else two near its square root.

    The product is at most `buckets` and may lie below it: 130 gives 16 x 8.
    """
    if buckets <= MOST_BUCKETS:
        return (buckets,)
    first = 2 ** math.ceil(math.log2(math.sqrt(buckets)))
    return first, 2 * (buckets // (2 * first))


def draw_rotations(rng: Array, buckets: int, rounds: int, heads: int, width: int) -> list[Float[Array, 'H K T _']]:
    """Gaussian directions for each factor of the number of buckets, half as many as buckets; all rows share them."""
    factors = bucket_factors(buckets)
    return [
        jax.random.normal(key, (heads, width, rounds, factor // 2), jnp.float32)
        for key, factor in zip(jax.random.split(rng, len(factors)), factors, strict=True)
    ]


def hash_buckets(query: Float[Array, 'B L H K'], rotations: list[Float[Array, 'H K T _']]) -> Int[Array, 'B H T L']:
    """The bucket of each query in each round: argmax [x R; -x R], in mixed radix where there are several R.

    Vectors at a small angle share a bucket more often than others (Andoni et al. 2015, arXiv 1509.02897). The number of
    directions grows with the length, so the projections of all positions at once would grow faster than it.
    """
    length = query.shape[1]
    if length <= HASHED_AT_ONCE:
        return hash_block(query, rotations)
    padded = jnp.pad(query, ((0, 0), (0, -length % HASHED_AT_ONCE), (0, 0), (0, 0)))
    blocks = padded.reshape(query.shape[0], -1, HASHED_AT_ONCE, *query.shape[2:]).swapaxes(0, 1)
    numbers = jax.lax.map(lambda block: hash_block(block, rotations), blocks)  # [n, B, H, T, block]
    numbers = jnp.moveaxis(numbers, 0, 3)
    return numbers.reshape(*numbers.shape[:3], -1)[..., :length]


def hash_block(query: Float[Array, 'B L H K'], rotations: list[Float[Array, 'H K T _']]) -> Int[Array, 'B H T L']:
    """`hash_buckets` of all positions at once."""
    numbers, base = None, 1
    x_BLHK = jax.lax.stop_gradient(query).astype(jnp.float32)
    for rotation in rotations:
        projected = jnp.einsum('BLHK,HKTb->BHTbL', x_BLHK, rotation, precision=jax.lax.Precision.HIGHEST)
        digits = strongest_direction(projected)
        numbers = digits if numbers is None else numbers + jnp.int32(base) * digits
        base *= 2 * rotation.shape[-1]
    assert numbers is not None
    return numbers


def strongest_direction(projected_BHTbL: Array) -> Array:
    """argmax over [x, -x] along axis b; two plain reductions, which a CPU vectorises as it does not argmax."""
    count = projected_BHTbL.shape[-2]
    largest = jnp.abs(projected_BHTbL).max(axis=-2, keepdims=True)
    numbers = jax.lax.broadcasted_iota(jnp.int32, projected_BHTbL.shape, projected_BHTbL.ndim - 2)
    mirrored = jnp.where(-projected_BHTbL == largest, numbers + count, 2 * count - 1)  # no NaN leaves the range
    return jnp.where(projected_BHTbL == largest, numbers, mirrored).min(axis=-2)
