"""Causal attention through features over chunks of positions, with no array of all positions by all features on a CPU.

There is a masked product inside each chunk and the sums over all keys before it; the maxima that scale the features run
along with the sums, so what comes later scales nothing but its own chunk. A query whose keys all lie more than a factor
1e30 below later ones of its chunk, in every feature, would be lost to that scale; where the program meets one, it
computes all again with the logarithms of each pair inside a chunk, slower and without that limit. Queries that find
nothing because they have no feature with any key, as of relu, are told from these before. With equal segments side by
side, a chunk's sums before it are those of the one segment that is open at its start.

Axes: G key heads with h query heads each, C positions of a chunk, R features.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.devices import device_forms
from efficient_attention.attention.features import key_sums, segment_sums
from efficient_attention.attention.features.chunk_attention import (
    AttendChunk,
    ChunkKeys,
    Outputs,
    attend_chunk,
    attend_chunk_exactly,
    find_readers,
    up_to_query,
)
from efficient_attention.attention.features.chunks import Inputs, PositionChunk, cut_inputs, join
from efficient_attention.attention.features.feature_map import FeatureMap, mask_keys
from efficient_attention.attention.features.key_sums import KeySums, add_keys, no_keys, scale_keys
from efficient_attention.attention.features.segment_sums import SegmentSums, earlier_step, later_step
from efficient_attention.attention.weights import MASKED

Carry = Any  # KeySums, or SegmentSums where there are segments


class Walk(NamedTuple):
    """How sums go on from chunk to chunk.

    `step` makes of the sums before a chunk those after it and the outputs of its queries; `combine` makes one of the
    sums over two neighbouring stretches; `empty` is the sums before any key, next to a chunk.
    """

    step: Callable[[Carry, PositionChunk], tuple[Carry, Outputs]]
    combine: Callable[[Carry, Carry], Carry]
    empty: Callable[[PositionChunk], Carry]


def attend_causal(
    inputs: Inputs,
    sums: KeySums,
    features: FeatureMap,
    size: int,
    *,
    reads: str = 'earlier',
) -> tuple[Outputs, KeySums]:
    """Float32 outputs [B, L, H, K] and log-sum-exp [B, L, H] of queries that read earlier keys, and the sums after.

    The other two values of `reads` divide the keys of a query's segment into two parts, for a form that is not causal.

    Args:
        inputs: L >= 1 positions.
        sums: over keys that come before all of them.
        features: of queries and keys.
        size: positions of a chunk, at most.
        reads: 'earlier' = a query reads itself and what comes before; and with segments also
            'chunk' = what comes before and its whole chunk, 'later' = what comes after its chunk.
    """
    length = inputs.query_BLHK.shape[1]
    chunks = cut_inputs(inputs, min(size, length))
    go = all_at_once if device_forms().feature_prefix_sums else one_by_one
    start: Carry = sums
    if inputs.segments_BL is not None:
        first_B = inputs.segments_BL[:, -1 if reads == 'later' else 0]
        start = SegmentSums(sums, first_B, jnp.ones(first_B.shape, bool))
    if reads == 'later':
        walk = segment_walk(functools.partial(later_step, features=features), features)
        last, outputs = go(walk, start, jax.tree.map(jnp.flipud, chunks))
        out_BLHK, lse_BLH = (join(jnp.flipud(x), length) for x in outputs)
        return (out_BLHK, lse_BLH), last.sums
    last, outputs = go(walk_of(inputs, features, reads, attend_chunk), start, chunks)
    out_BLHK, lse_BLH = (join(x, length) for x in outputs)
    if reads == 'earlier':

        def once_more(attend: AttendChunk) -> Outputs:
            out, lse = one_by_one(walk_of(inputs, features, reads, attend), start, chunks)[1]
            return join(out, length), join(lse, length)

        exactly = jax.checkpoint(functools.partial(once_more, attend_chunk_exactly))

        def if_readers() -> Outputs:
            """As `exactly`, unless the queries that found nothing have no feature with any key."""
            is_reader_BLH = once_more(find_readers)[1] > MASKED / 2
            return jax.lax.cond((is_lost_BLH & is_reader_BLH).any(), exactly, lambda: (out_BLHK, lse_BLH))

        is_lost_BLH = (lse_BLH <= MASKED / 2) & has_key(inputs, sums)[..., None]
        out_BLHK, lse_BLH = jax.lax.cond(
            is_lost_BLH.any(), if_readers if features.has_zeros else exactly, lambda: (out_BLHK, lse_BLH)
        )
    return (out_BLHK, lse_BLH), last if inputs.segments_BL is None else last.sums


def walk_of(inputs: Inputs, features: FeatureMap, reads: str, attend: AttendChunk) -> Walk:
    """The walk over chunks of the inputs, whose queries attend by `attend` to keys of their chunk."""
    if inputs.segments_BL is None:
        step = functools.partial(plain_step, features=features, attend=attend)
        return Walk(step, key_sums.combine, functools.partial(empty_sums, features))
    return segment_walk(functools.partial(earlier_step, features=features, attend=attend, reads=reads), features)


def segment_walk(step: Callable[[Carry, PositionChunk], tuple[Carry, Outputs]], features: FeatureMap) -> Walk:
    """The walk over chunks with segments by `step`."""

    def empty(chunk: PositionChunk) -> SegmentSums:
        first_B = segment_sums.segments_of(chunk)[:, 0]
        return SegmentSums(empty_sums(features, chunk), first_B, jnp.ones(first_B.shape, bool))

    return Walk(step, segment_sums.combine, empty)


def empty_sums(features: FeatureMap, chunk: PositionChunk) -> KeySums:
    """The sums before any key, for the rows and heads of a chunk."""
    batch, key_heads, _, width = chunk.key_BGCK.shape
    return no_keys(batch, key_heads, features.count(width), width)


def plain_step(
    before: KeySums, chunk: PositionChunk, *, features: FeatureMap, attend: AttendChunk
) -> tuple[KeySums, Outputs]:
    """The sums after a chunk, and outputs [B, G, h, C, K] and log-sum-exp [B, G, h, C] of its queries."""
    key_logs_BGCR = mask_keys(features.logs(chunk.key_BGCK), chunk.valid_BC)
    sums, key_BGCR = scale_keys(before, key_logs_BGCR)
    query_logs_BGhCR = features.logs(chunk.query_BGhCK)
    keys = ChunkKeys(before, sums, key_logs_BGCR, key_BGCR, chunk.value_BGCK)
    after = add_keys(sums, key_BGCR, chunk.value_BGCK)
    return after, attend(query_logs_BGhCR, keys, up_to_query(chunk.key_BGCK.shape[2]), None)


def has_key(inputs: Inputs, sums: KeySums) -> Bool[Array, 'B L']:
    """Whether a query may read some key, summed before or among its segment's up to its own position."""
    segments_BL, shape = inputs.segments_BL, inputs.query_BLHK.shape[:2]
    valid_BL = jnp.ones(shape, bool) if inputs.valid_BL is None else inputs.valid_BL
    numbers_1L = jnp.arange(shape[1])[None]
    last_key_BL = jax.lax.cummax(jnp.where(valid_BL, numbers_1L, -1), axis=1)
    if segments_BL is None:
        return (last_key_BL >= 0) | (sums.stabiliser_BGR > MASKED / 2).any(axis=(1, 2))[:, None]
    is_first_BL = jnp.pad(segments_BL[:, 1:] != segments_BL[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return last_key_BL >= jax.lax.cummax(jnp.where(is_first_BL, numbers_1L, 0), axis=1)


def one_by_one(walk: Walk, start: Carry, chunks: PositionChunk) -> tuple[Carry, Outputs]:
    """The sums after the last chunk, and all outputs with an axis n of chunks in front.

    Recomputing a chunk in the backward pass costs a CPU less than reading its features [C, R] back from memory.
    """
    return jax.lax.scan(jax.checkpoint(walk.step, prevent_cse=False), start, chunks)


def all_at_once(walk: Walk, start: Carry, chunks: PositionChunk) -> tuple[Carry, Outputs]:
    """As `one_by_one`, in parallel: what each chunk alone adds, then what comes before each, then all outputs."""
    step = jax.checkpoint(walk.step)

    def alone(chunk: PositionChunk) -> Carry:
        return step(walk.empty(chunk), chunk)[0]

    carries = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, jax.vmap(alone)(chunks))
    carries = jax.lax.associative_scan(jax.vmap(walk.combine), carries)
    before, last = jax.tree.map(lambda x: x[:-1], carries), jax.tree.map(lambda x: x[-1], carries)
    return last, jax.vmap(lambda carry, chunk: step(carry, chunk)[1])(before, chunks)
