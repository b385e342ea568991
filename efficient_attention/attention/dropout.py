"""Dropout whose random bits depend only on a random key and an element's indices;
cutting or sharding an array does not change them.

A mask sampled for a whole array by a counter-based generator changes with the array's shape, so with tiling,
micro-batches and padding. Here each element's bits are a hash of (key, its indices). Any part of the mask can be
computed on any device, without an array of all bits. The hash is a multiply-xorshift finaliser, about 8 integer
operations per element. Its constants are NumPy scalars, because kernels accept no arrays as constants.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Integer, UInt32


def hash_bits(bits: UInt32[Array, '...']) -> UInt32[Array, '...']:
    """Returns a hash of uint32 numbers: a bijection in which every input bit flips about half of the output bits.

    The constants come from C. Wellons' "lowbias32" search (hash-prospector, public domain).
    """
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * np.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def row_seeds(rng: Array, batch: int) -> UInt32[Array, 'B']:
    """Returns one dropout seed per batch row, from one key (folded with the row's index) or from one key per row
    [B].
    """
    if rng.ndim == 0:
        rng = jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(batch))
    return jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32))(rng)


def dropout_keep_mask(rng: Array, rate: float, batch: int, *indices: Integer[Array, '...']) -> Bool[Array, 'B ...']:
    """Returns the dropout mask [B, n1, n2, ...]: booleans that are True with probability 1 - rate.

    Args:
        rng: a typed key, or one per batch row [B]; rows with equal keys get equal masks.
        rate: probability to drop, in [0, 1).
        batch: B.
        *indices: integers [n1], [n2], ...: the elements' indices along each axis after the batch.
    """
    return is_kept(hash_in_indices(row_seeds(rng, batch), *indices), rate)


def hash_in_indices(bits: UInt32[Array, '...'], *indices: Integer[Array, '...']) -> UInt32[Array, '...']:
    """Returns random bits [..., n1, n2, ...] for dropout, hashed from given bits [...]
    and the elements' indices [n1], [n2], ... on further axes.
    """
    for index in indices:
        bits = hash_in_index(bits[..., None], jnp.expand_dims(index, range(bits.ndim)))
    return bits


def hash_in_index(bits: UInt32[Array, '...'], index: Integer[Array, '...']) -> UInt32[Array, '...']:
    """Returns a hash of random bits and an element's index along one further axis; the two arguments broadcast."""
    return hash_bits(bits + spread_index(index))


def spread_index(index: Integer[Array, '...']) -> UInt32[Array, '...']:
    """Returns uint32 numbers that differ in many bits between neighbouring indices: multiples of the golden ratio."""
    return (index.astype(jnp.uint32) + np.uint32(1)) * np.uint32(0x9E3779B9)


def is_kept(bits: UInt32[Array, '...'], rate: float) -> Bool[Array, '...']:
    """Returns whether dropout at `rate` keeps an element that has these uint32 random bits."""
    return bits >= np.uint32(round(rate * 2**32))


def dropout(x: Float[Array, 'B ...'], rate: float, rng: Array | None) -> Float[Array, 'B ...']:
    """Returns `x` [B, ...] after dropout: each element becomes zero with probability `rate`,
    and all others are divided by 1 - rate.

    Without a key, or at rate 0, returns `x` itself. Source: Srivastava et al. 2014 (JMLR 15), in its inverted form.
    """
    if rng is None or rate == 0.0:
        return x
    keep = dropout_keep_mask(rng, rate, x.shape[0], *(jnp.arange(size) for size in x.shape[1:]))
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))
