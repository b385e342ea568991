"""Sorts packed rows so that tokens of equal segments are neighbours;
the sums over keys cover only one segment at a time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@jax.custom_vjp
def permute_positions(x_BLHK: Array, source_BN: Array, target_BL: Array) -> Array:  # noqa: ARG001  the gradient reads target_BL
    """Returns an array whose entry n along the axis of positions is the entry `source[n]` of `x`, or zeros where
    `source[n]` is -1.

    `target_BL` is the entry n to which each position moves. The gradient is the same gather in the other direction; the
    gradient of plain indexing would be a scatter.
    """
    moved = jax.vmap(lambda x, source: jnp.take(x, source, axis=0, mode='clip'))(x_BLHK, source_BN)
    return jnp.where((source_BN >= 0)[..., None, None], moved, jnp.zeros_like(moved))


def _permute_forward(x_BLHK: Array, source_BN: Array, target_BL: Array) -> tuple[Array, tuple[Array, Array]]:
    return permute_positions(x_BLHK, source_BN, target_BL), (source_BN, target_BL)


def _permute_backward(indices: tuple[Array, Array], gradient_BNHK: Array) -> tuple[Array, None, None]:
    source_BN, target_BL = indices
    return permute_positions(gradient_BNHK, target_BL, source_BN), None, None


permute_positions.defvjp(_permute_forward, _permute_backward)


class SegmentOrder(NamedTuple):
    """The sorted order of packed rows: the segment, query and key at each sorted index (-1: none), and the sorted index
    of each query and key.
    """

    segments_BN: Array
    query_source_BN: Array
    key_source_BN: Array
    query_slots_BL: Array
    key_slots_BM: Array


def sort_segments(query_segments_BL: Array, key_segments_BM: Array, causal: bool) -> SegmentOrder:
    """Returns the order of a row's positions in which equal segments are neighbours;
    tokens keep their order within a segment.

    If queries and keys have the same segments array, one slot holds a query and its key. Otherwise queries and keys
    have separate slots; if causal, a key's slot is just before the slot of the query with the same index.
    """
    queries, keys = query_segments_BL.shape[1], key_segments_BM.shape[1]
    if query_segments_BL is key_segments_BM:
        key_at, query_at = np.arange(keys), np.arange(queries)
    else:
        key_at, query_at = (
            (2 * np.arange(keys), 2 * np.arange(queries) + 1) if causal else np.split(np.arange(keys + queries), [keys])
        )
    sources = np.full((2, max(key_at[-1], query_at[-1]) + 1), -1, np.int32)
    sources[0, query_at], sources[1, key_at] = np.arange(queries), np.arange(keys)
    segments_BN = jnp.where(sources[1] >= 0, key_segments_BM[:, sources[1]], query_segments_BL[:, sources[0]])
    order_BN = jnp.argsort(segments_BN, axis=1, stable=True)
    slots_BN = jnp.argsort(order_BN, axis=1)
    query_source_BN, key_source_BN = (jnp.asarray(source)[order_BN] for source in sources)
    sorted_BN = jnp.take_along_axis(segments_BN, order_BN, axis=1)
    return SegmentOrder(sorted_BN, query_source_BN, key_source_BN, slots_BN[:, query_at], slots_BN[:, key_at])


def has_one_segment(query_segments_BL: Array, key_segments_BM: Array) -> Array:
    """Returns one boolean for the batch: whether every row holds at most one segment besides padding.

    If it is True, only padding needs a mask.
    """
    segments_BN = jnp.concatenate([query_segments_BL, key_segments_BM], axis=1)
    limits = jnp.iinfo(segments_BN.dtype)
    lowest_B = jnp.where(segments_BN == 0, limits.max, segments_BN).min(axis=1)
    return (lowest_B >= jnp.where(segments_BN == 0, limits.min, segments_BN).max(axis=1)).all()
