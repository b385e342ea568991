"""Dropout whose random bits depend only on a key and on an element's indices.

A mask sampled for a whole array by a counter-based generator changes with the array's shape, so with tiling,
micro-batches and padding. Here each element's bits are a hash of (key, its indices). Any part of the mask can be
computed on any device, without an array of all bits. The hash is a multiply-xorshift finaliser, about 8 integer
operations per element.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer, UInt32


def hash_bits(bits: UInt32[Array, '...']) -> UInt32[Array, '...']:
    """Returns hashed bits: a bijection on uint32 in which every input bit flips about half of the output bits.

    The constants come from C. Wellons' "lowbias32" search (hash-prospector, public domain).
    """
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def row_seeds(rng: Array, batch: int) -> UInt32[Array, 'B']:
    """Returns one seed per batch row, from one key (folded with the row's index) or from one key per row [B]."""
    if rng.ndim == 0:
        rng = jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(batch))
    return jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32))(rng)


def keep_mask(rng: Array, rate: float, batch: int, *indices: Integer[Array, '...']) -> Bool[Array, 'B ...']:
    """Returns booleans [B, n1, n2, ...] that are True with probability 1 - rate.

    Args:
        rng: a typed key, or one per batch row [B]; rows with equal keys get equal masks.
        rate: probability to drop, in [0, 1).
        batch: B.
        *indices: integers [n1], [n2], ...: the elements' indices along each axis after the batch.
    """
    return is_kept(fold_indices(row_seeds(rng, batch), *indices), rate)


def fold_indices(bits: UInt32[Array, '...'], *indices: Integer[Array, '...']) -> UInt32[Array, '...']:
    """Returns the bits [..., n1, n2, ...] of elements along more axes, each given by its indices [n1], [n2], ..."""
    for index in indices:
        bits = fold_index(bits[..., None], jnp.expand_dims(index, range(bits.ndim)))
    return bits


def fold_index(bits: UInt32[Array, '...'], index: Integer[Array, '...']) -> UInt32[Array, '...']:
    """Returns `bits` mixed with an element's index along one more axis; one step of `keep_mask`. Both broadcast."""
    # Golden-ratio steps keep neighbouring counters far apart before they are mixed.
    return hash_bits(bits + (index.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(0x9E3779B9))


def is_kept(bits: UInt32[Array, '...'], rate: float) -> Bool[Array, '...']:
    """Returns whether an element with these bits survives dropout at `rate`."""
    return bits >= jnp.uint32(round(rate * 2**32))


def dropout(x: Float[Array, 'B ...'], rate: float, rng: Array | None) -> Float[Array, 'B ...']:
    """Returns `x` [B, ...] with elements set to zero with probability `rate` and the rest scaled by 1 / (1 - rate).

    Without a key, or at rate 0, returns `x` itself. Source: Srivastava et al. 2014 (JMLR 15), in its inverted form.
    """
    if rng is None or rate == 0.0:
        return x
    keep = keep_mask(rng, rate, x.shape[0], *(jnp.arange(size) for size in x.shape[1:]))
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))
