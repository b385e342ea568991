"""Caches cross-attention with a feature map for decoding: keeps only sums over the keys of the source sequence, such as
an encoder's output.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.features.chunks import cut_keys, cut_queries, merge_chunks
from efficient_attention.attention.features.feature_map import FeatureMap, divide_sums, mask_keys, query_features
from efficient_attention.attention.features.key_sums import (
    KeySums,
    add_keys,
    bring_to_common_scale,
    read_sums,
    zero_key_sums,
)
from efficient_attention.attention.single_text_rows import is_single_segment_row


class CrossAttentionSums(NamedTuple):
    """The cache for cross-attention with a feature map: sums over each row's source keys, the feature map, and the
    number `segment_B` of the row's only segment.
    """

    sums: KeySums
    features: FeatureMap
    segment_B: Array
    is_one_B: Array  # whether the batch row holds only one segment


def sum_cross_keys(key_BMGK: Array, value_BMGK: Array, segments_BM: Array, features: FeatureMap) -> CrossAttentionSums:
    """Returns the sums over all source keys of each row, except padding (segment 0),
    for cross-attention with a feature map.

    `is_one_B` is False for rows that pack several segments; `read_cross_sums` gives NaN for these rows.
    """
    batch, keys, groups, width = key_BMGK.shape
    segment_B = segments_BM.max(axis=1)
    key_logs_BGMR = mask_keys(features.map_to_log_features(cut_keys(key_BMGK, keys)[0]), segments_BM != 0)
    sums, key_BGMR = bring_to_common_scale(
        zero_key_sums(batch, groups, features.feature_count(width), width), key_logs_BGMR
    )
    sums = add_keys(sums, key_BGMR, cut_keys(value_BMGK, keys)[0])
    return CrossAttentionSums(sums, features, segment_B, is_single_segment_row(segments_BM))


def read_cross_sums(fixed: CrossAttentionSums, query_BLHK: Array, segments_BL: Array) -> Float[Array, 'B L H K']:
    """Returns cross-attention outputs from the cached sums, in the query's dtype; zeros for padding and for queries of
    a segment other than the keys' segment.
    """
    queries = query_BLHK.shape[1]
    stabiliser_BGR = fixed.sums.stabiliser_BGR
    query_BGhLK = cut_queries(query_BLHK, stabiliser_BGR.shape[1], queries)[0]
    query_BGhLR, scale_BGhL = query_features(
        fixed.features.map_to_log_features(query_BGhLK), stabiliser_BGR[:, :, None, None]
    )
    out_BGhLK, _ = divide_sums(*read_sums(query_BGhLR, fixed.sums), scale_BGhL)
    is_read_BL = (segments_BL == fixed.segment_B[:, None]) & (segments_BL != 0)
    out_BLHK = jnp.where(is_read_BL[..., None, None], merge_chunks(out_BGhLK[None], queries), 0.0)
    return jnp.where(fixed.is_one_B[:, None, None, None], out_BLHK, jnp.nan).astype(query_BLHK.dtype)
