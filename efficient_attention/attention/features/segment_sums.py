"""Computes linear attention over packed segments, chunk by chunk.

The key sums that enter a chunk cover only one segment: the segment of the last token before the chunk.

Axes: G key heads with h query heads each, C positions of a chunk, R features.
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.features import key_sums
from efficient_attention.attention.features.chunk_attention import AttendChunk, ChunkKeys, Outputs, causal_chunk_mask
from efficient_attention.attention.features.chunks import PositionChunk
from efficient_attention.attention.features.feature_map import FeatureMap, divide_sums, mask_keys, query_features
from efficient_attention.attention.features.key_sums import (
    KeySums,
    add_keys,
    bring_to_common_scale,
    read_sums,
    reset_other_rows,
)


class SegmentSums(NamedTuple):
    """Sums over the keys of the last segment in a range of positions; `segment_B` is the number of this segment.

    `is_alone_B` is True if the range holds no other segment.
    """

    sums: KeySums
    segment_B: Array
    is_alone_B: Array


def combine_sums(left: SegmentSums, right: SegmentSums) -> SegmentSums:
    """Returns the key sums over the last segment of two adjacent ranges of positions,
    where `left` comes before `right`.

    If the last segment began in `left`, its sums in both ranges are added. This is the case if `right` holds no other
    segment and `left` ends with the same segment. Otherwise the sums of `left` are dropped.
    """
    joins_B = right.is_alone_B & (left.segment_B == right.segment_B)
    sums = key_sums.combine_sums(reset_other_rows(left.sums, joins_B), right.sums)
    return SegmentSums(sums, right.segment_B, left.is_alone_B & joins_B)


def causal_segment_step(
    before: SegmentSums, chunk: PositionChunk, *, features: FeatureMap, attend: AttendChunk, reads: str = 'earlier'
) -> tuple[SegmentSums, Outputs]:
    """Computes one chunk of packed segments: returns the key sums after the chunk,
    and outputs and log-sum-exp of the chunk's queries.

    Args:
        before: the sums at the end of the chunk before.
        chunk: queries, keys, values and segments; queries read only their segment.
        features: the feature map of queries and keys.
        attend: how queries read keys of their chunk.
        reads: 'earlier' = keys up to the query, 'chunk' = all keys of the segment in the chunk or before it.
    """
    chunk, segments_BC = chunk.in_float32(), segments_of(chunk)
    open_BC, last_BC = segments_BC == before.segment_B[:, None], segments_BC == segments_BC[:, -1:]
    key_logs_BGCR = mask_keys(features.map_to_log_features(chunk.key_BGCK), chunk.valid_BC)
    level_sums, key_logs_BGCR, levels_BGC = subtract_segment_maximum(before.sums, key_logs_BGCR, segments_BC, open_BC)
    sums, key_BGCR = bring_to_common_scale(level_sums, key_logs_BGCR)
    query_logs_BGhCR = features.map_to_log_features(chunk.query_BGhCK)
    allowed_bCC = segments_BC[:, :, None] == segments_BC[:, None, :]
    allowed_bCC = allowed_bCC & causal_chunk_mask(segments_BC.shape[1]) if reads == 'earlier' else allowed_bCC
    keys = ChunkKeys(level_sums, sums, key_logs_BGCR, key_BGCR, chunk.value_BGCK)
    out_BGhCK, lse_BGhC = attend(query_logs_BGhCR, keys, allowed_bCC, open_BC[:, None, None])
    # The last segment's largest log feature is added back to the stabiliser; the next chunk subtracts its own maximum.
    stabiliser_BGR = sums.stabiliser_BGR + levels_BGC[:, :, -1:]
    sums = reset_other_rows(sums, open_BC[:, -1])._replace(stabiliser_BGR=stabiliser_BGR)
    sums = add_keys(sums, jnp.where(last_BC[:, None, :, None], key_BGCR, 0.0), chunk.value_BGCK)
    is_alone_B = before.is_alone_B & open_BC[:, -1] & last_BC.all(axis=1)
    return SegmentSums(sums, segments_BC[:, -1], is_alone_B), (out_BGhCK, lse_BGhC + levels_BGC[:, :, None])


def reverse_segment_step(
    after: SegmentSums, chunk: PositionChunk, *, features: FeatureMap
) -> tuple[SegmentSums, Outputs]:
    """Computes one chunk of packed segments in which queries read only the keys after their chunk; the scan starts at
    the last chunk.
    """
    chunk, segments_BC, sums = chunk.in_float32(), segments_of(chunk), after.sums
    open_BC, first_BC = segments_BC == after.segment_B[:, None], segments_BC == segments_BC[:, :1]
    query_logs_BGhCR = features.map_to_log_features(chunk.query_BGhCK)
    query_BGhCR, scale_BGhC = query_features(query_logs_BGhCR, sums.stabiliser_BGR[:, :, None, None])
    numerator_BGhCK, total_BGhC = read_sums(query_BGhCR, sums)
    outputs = divide_sums(numerator_BGhCK, jnp.where(open_BC[:, None, None], total_BGhC, 0.0), scale_BGhC)
    valid_BC = first_BC if chunk.valid_BC is None else first_BC & chunk.valid_BC
    key_logs_BGCR = mask_keys(features.map_to_log_features(chunk.key_BGCK), valid_BC)
    sums, key_BGCR = bring_to_common_scale(reset_other_rows(sums, open_BC[:, 0]), key_logs_BGCR)
    is_alone_B = after.is_alone_B & open_BC[:, 0] & first_BC.all(axis=1)
    return SegmentSums(add_keys(sums, key_BGCR, chunk.value_BGCK), segments_BC[:, 0], is_alone_B), outputs


def segments_of(chunk: PositionChunk) -> Array:
    """Returns the segments [B, C] of a chunk of packed rows."""
    return cast(Array, chunk.segments_BC)


def subtract_segment_maximum(
    sums: KeySums, key_logs_BGCR: Array, segments_BC: Array, open_BC: Array
) -> tuple[KeySums, Array, Array]:
    """Returns key sums and log features minus the largest log feature of their segment,
    and these largest log features [B, G, C].

    The code calls such a maximum a level. Without levels, the segment with the largest features would push its
    neighbours in a chunk below float32's range.
    """
    peaks_BGC = jax.lax.stop_gradient(key_logs_BGCR.max(axis=-1))
    same_B1CC = (segments_BC[:, :, None] == segments_BC[:, None, :])[:, None]
    inside_BGC = jnp.where(same_B1CC, peaks_BGC[:, :, None, :], MASKED).max(axis=-1)
    open_BG = jnp.where(open_BC[:, None], peaks_BGC, MASKED).max(axis=-1)
    open_BG = jnp.maximum(open_BG, sums.stabiliser_BGR.max(axis=-1))
    levels_BGC = jnp.where(open_BC[:, None], open_BG[..., None], inside_BGC)
    # A segment without keys gets 0 as its largest log feature, so that its log features stay at MASKED.
    levels_BGC, open_BG = (jnp.where(level > MASKED / 2, level, 0.0) for level in (levels_BGC, open_BG))
    relative = sums._replace(stabiliser_BGR=sums.stabiliser_BGR - open_BG[..., None])
    return relative, key_logs_BGCR - levels_BGC[..., None], levels_BGC
