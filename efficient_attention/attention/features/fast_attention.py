"""Computes attention with any feature map, causal or not, for packed rows or single texts;
time and memory are linear in the length.

noncausal.py and causal.py compute the sums; segment_sorting.py sorts packed rows by segment before they are summed.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.features.causal import attend_causal
from efficient_attention.attention.features.chunks import FeatureAttentionInputs
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.features.key_sums import KeySums, zero_key_sums
from efficient_attention.attention.features.noncausal import attend_noncausal
from efficient_attention.attention.features.segment_sorting import has_one_segment, permute_positions, sort_segments
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.request import QueryKeyPair, Request


def attend_features(request: Request, features: FeatureMap, chunk: int) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns linear attention phi(q) (phi(k)^T v) / phi(q) sum phi(k) in the query's dtype.

    `chunk` is the number of positions in a chunk of the causal form, and of rows with several segments.
    """
    check_supported(request)
    if request.segments is None:
        out_BLHK = attend_one_segment(request, features, chunk)
    else:
        out_BLHK = attend_packed_segments(request, request.segments, features, chunk)
    return out_BLHK.astype(request.query.dtype), None


def check_supported(request: Request) -> None:
    """Raises a NotImplementedError that names each requested option
    that linear attention does not support, such as a bias.
    """
    is_causal = request.mechanism.is_causal
    lacks = {
        'additive bias': request.bias is not None,
        'dropout on weights': request.dropout is not None,
        'log-sum-exp': request.return_lse,
        'causal form for other positions than 0, 1, ...': is_causal and not request.has_default_positions,
        'causal form for unequal lengths': is_causal and request.query.shape[1] != request.key.shape[1],
    }
    raise_unsupported(request.mechanism.name, lacks)


def attend_one_segment(
    request: Request, features: FeatureMap, chunk: int, valid_BM: Array | None = None
) -> Float[Array, 'B L H K']:
    """Returns float32 attention outputs for rows whose keys are one segment, or one segment and padding.

    In the causal form, queries have padding at the same positions as keys.
    """
    query, key, value = request.query, request.key, request.value
    if request.mechanism.is_causal:
        inputs = FeatureAttentionInputs(query, key, value, valid_BM, used_query_BL=valid_BM)
        return attend_causal(inputs, zero_sums_like(key, features), features, chunk)[0][0]
    return attend_noncausal(query, key, value, valid_BM, features)


def zero_sums_like(key_BMGK: Array, features: FeatureMap) -> KeySums:
    """Returns the key sums before any key is added, in the shapes for these keys."""
    batch, _, key_heads, width = key_BMGK.shape
    return zero_key_sums(batch, key_heads, features.feature_count(width), width)


def attend_packed_segments(
    request: Request, segments: QueryKeyPair, features: FeatureMap, chunk: int
) -> Float[Array, 'B L H K']:
    """Returns float32 attention outputs of packed rows, in which queries read only their own segment; zeros for
    padding.

    Rows that hold one segment and padding need no sorting. In the causal form, these are rows whose queries and keys
    have one array of `Lengths`. In the noncausal form, the program checks this while it runs.
    """
    packed = functools.partial(attend_segments, request, segments, features, chunk)
    plain = functools.partial(attend_one_segment, request, features, chunk, jnp.not_equal(segments.key, 0))
    if request.mechanism.is_causal:
        is_one_text = request.lengths is not None and request.lengths.query is request.lengths.key
        out_BLHK = plain() if is_one_text else packed()[0]
    else:
        out_BLHK = jax.lax.cond(has_one_segment(*segments), plain, lambda: packed()[0])
    return jnp.where(jnp.not_equal(segments.query, 0)[..., None, None], out_BLHK, 0.0)


def attend_segments(
    request: Request, segments: QueryKeyPair, features: FeatureMap, chunk: int
) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B L H']]:
    """Returns float32 outputs and log-sum-exp of queries that read only their own segment,
    in the causal or noncausal form.
    """
    is_causal = request.mechanism.is_causal
    order = sort_segments(segments.query, segments.key, is_causal)
    query_BNHK = permute_positions(request.query, order.query_source_BN, order.query_slots_BL)
    key_BNGK, value_BNGK = (
        permute_positions(x, order.key_source_BN, order.key_slots_BM) for x in (request.key, request.value)
    )
    valid_BN = (order.key_source_BN >= 0) & (order.segments_BN != 0)
    inputs = FeatureAttentionInputs(query_BNHK, key_BNGK, value_BNGK, valid_BN, order.segments_BN)
    attend = functools.partial(attend_causal, inputs, zero_sums_like(key_BNGK, features), features, chunk)
    if is_causal:
        out_BNHK, lse_BNH = attend()[0]
    else:
        (out_BNHK, lse_BNH), _ = attend(reads='chunk')
        (later_BNHK, later_lse_BNH), _ = attend(reads='later')
        share_BNH = jax.nn.sigmoid(later_lse_BNH - lse_BNH)
        out_BNHK = out_BNHK + share_BNH[..., None] * (later_BNHK - out_BNHK)
        lse_BNH = jnp.logaddexp(lse_BNH, later_lse_BNH)
    out_BLHK, lse_BLH1 = (
        permute_positions(x, order.query_slots_BL, order.query_source_BN) for x in (out_BNHK, lse_BNH[..., None])
    )
    return out_BLHK, lse_BLH1[..., 0]
