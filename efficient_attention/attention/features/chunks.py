"""Cuts queries, keys and values along positions into chunks, with the key-head axis
in front, and joins the outputs again.

Axes: n chunks of C positions, G key heads with h = H / G query heads each, K head width.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Shaped


class FeatureAttentionInputs(NamedTuple):
    """The queries, keys and values of L positions for causal linear attention;
    a query reads keys up to its own position.

    Invalid keys are not read; by default all keys are valid. Equal segments must be neighbours, and a query reads only
    its own segment. The caller ignores the outputs of unused queries; by default all queries are used.
    """

    query_BLHK: Array
    key_BLGK: Array
    value_BLGK: Array
    valid_BL: Array | None = None
    segments_BL: Array | None = None
    used_query_BL: Array | None = None


class PositionChunk(NamedTuple):
    """The queries, keys and values of C neighbouring positions;
    several chunks have a leading axis n in each array.
    """

    query_BGhCK: Array
    key_BGCK: Array
    value_BGCK: Array
    valid_BC: Array | None
    segments_BC: Array | None

    def in_float32(self) -> 'PositionChunk':
        """Returns the chunk with float32 queries, keys and values."""
        query, key, value = (x.astype(jnp.float32) for x in self[:3])
        return PositionChunk(query, key, value, self.valid_BC, self.segments_BC)


def cut_into_chunks(x: Shaped[Array, '...'], size: int) -> Array:
    """Returns an array [B, L, ...] cut into n chunks of `size` positions,
    [n, B, size, ...], padded with zeros at the end.
    """
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size)) + ((0, 0),) * (x.ndim - 2))
    return x.reshape(x.shape[0], -1, size, *x.shape[2:]).swapaxes(0, 1)


def cut_queries(
    query_BLHK: Array, groups: int, size: int, dtype: jnp.dtype = jnp.float32
) -> Shaped[Array, 'n B G h C K']:
    """Returns queries [n, B, G, h, C, K] in chunks of `size` positions;
    the h query heads of one key head are neighbours.
    """
    query_nBCHK = cut_into_chunks(query_BLHK.astype(dtype), size)
    query_nBCGhK = query_nBCHK.reshape(*query_nBCHK.shape[:3], groups, -1, query_nBCHK.shape[-1])
    return jnp.moveaxis(query_nBCGhK, 2, 4)


def cut_keys(key_BMGK: Array, size: int, dtype: jnp.dtype = jnp.float32) -> Shaped[Array, 'n B G C K']:
    """Returns keys or values [n, B, G, C, K] in chunks of `size` positions."""
    return cut_into_chunks(key_BMGK.astype(dtype), size).swapaxes(2, 3)


def split_mask_into_chunks(valid_BM: Array | None, batch: int, length: int, size: int) -> Bool[Array, 'n B C'] | None:
    """Returns the mask of valid keys cut into chunks, with False for positions
    that only fill the last chunk; None if all keys are valid.
    """
    if valid_BM is None:
        if length % size == 0:
            return None
        valid_BM = jnp.ones((batch, length), bool)
    return cut_into_chunks(valid_BM, size)


def cut_inputs(inputs: FeatureAttentionInputs, size: int) -> PositionChunk:
    """Returns queries, keys, values and masks cut into n chunks of `size` positions;
    each array has a leading axis n and its own dtype.
    """
    batch, length = inputs.query_BLHK.shape[:2]
    return PositionChunk(
        cut_queries(inputs.query_BLHK, inputs.key_BLGK.shape[2], size, inputs.query_BLHK.dtype),
        cut_keys(inputs.key_BLGK, size, inputs.key_BLGK.dtype),
        cut_keys(inputs.value_BLGK, size, inputs.value_BLGK.dtype),
        split_mask_into_chunks(inputs.valid_BL, batch, length, size),
        None if inputs.segments_BL is None else cut_into_chunks(inputs.segments_BL, size),
    )


def merge_chunks(chunks: Shaped[Array, '...'], length: int) -> Array:
    """Returns chunks [n, B, G, h, C, ...] joined to an array [B, L, H, ...],
    without the positions that only fill the last chunk.
    """
    count, batch, groups, heads, size, *rest = chunks.shape
    chunks = jnp.moveaxis(jnp.moveaxis(chunks, 0, 1), 4, 2)
    return chunks.reshape(batch, count * size, groups * heads, *rest)[:, :length]
