"""The decoding cache of causal linear attention with any feature map: sums over the keys. The size of these sums does
not depend on the length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.features.causal import attend_causal
from efficient_attention.attention.features.chunks import FeatureAttentionInputs
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.features.key_sums import KeySums, reset_other_rows, zero_key_sums


class SumsCache(NamedTuple):
    """The decoding cache of linear attention: sums over the keys of each row's latest segment `segment_B`, and the
    feature map.
    """

    sums: KeySums
    features: FeatureMap
    segment_B: Array


def init_sums(spec: CacheSpec, batch: int, features: FeatureMap) -> SumsCache:
    """Returns the empty decoding cache of linear attention, with sums of zero."""
    sums = zero_key_sums(batch, spec.key_heads, features.feature_count(spec.width), spec.width)
    return SumsCache(sums, features, jnp.zeros(batch, jnp.int32))


def decode_sums(cache: SumsCache, new: NewTokens, chunk: int) -> tuple[Float[Array, 'B n H K'], SumsCache]:
    """Returns the attention outputs of new tokens in the query's dtype, and the decoding cache with their keys added.

    New tokens read the keys of their segment if this segment is the latest in the cache or begins among the new tokens.
    `chunk` is the largest number of positions in a chunk.
    """
    count = new.query.shape[1]
    # `cut_into_chunks` would add zeros that count as a separate segment, so padding is added here.
    extra = -count % min(count, chunk)
    query, key, value = (jnp.pad(x, ((0, 0), (0, extra), (0, 0), (0, 0))) for x in new[:3])
    segments_BL = jnp.pad(new.segments, ((0, 0), (0, extra)))
    filled_BL = fill_padding_segments(segments_BL, cache.segment_B)
    sums = reset_other_rows(cache.sums, filled_BL[:, 0] == cache.segment_B)
    inputs = FeatureAttentionInputs(query, key, value, segments_BL != 0, filled_BL)
    (out_BLHK, _), sums = attend_causal(inputs, sums, cache.features, chunk)
    out_BLHK = jnp.where((segments_BL != 0)[..., None, None], out_BLHK, 0.0).astype(query.dtype)
    return out_BLHK[:, :count], SumsCache(sums, cache.features, filled_BL[:, -1])


def fill_padding_segments(segments_BL: Int[Array, 'B L'], before_B: Int[Array, 'B']) -> Int[Array, 'B L']:
    """Returns segments in which padding takes the number of the segment before it;
    padding then does not end a segment.
    """
    numbers_1L = jnp.arange(segments_BL.shape[1])[None]
    latest_BL = jax.lax.cummax(jnp.where(segments_BL != 0, numbers_1L, -1), axis=1)
    found_BL = jnp.take_along_axis(segments_BL, jnp.maximum(latest_BL, 0), axis=1)
    return jnp.where(latest_BL >= 0, found_BL, before_B[:, None])
