"""Sequence parallel attention with a feature map. Devices exchange sums over their keys; the size of these sums does
not depend on the length.

- If every query reads all keys, the devices add their sums.
- If causal, a device begins with the sums of all devices before it.
- If some row holds several segments, keys travel around the devices instead, and partial results are merged by their
  log-sum-exps. The program decides this while it runs. A device skips received keys if
  their segments cannot be among the segments of its queries.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.features.causal import attend_causal
from efficient_attention.attention.features.chunks import FeatureAttentionInputs, cut_keys, split_mask_into_chunks
from efficient_attention.attention.features.fast_attention import attend_segments, check_supported, zero_sums_like
from efficient_attention.attention.features.feature_map import FeatureMap, mask_keys
from efficient_attention.attention.features.key_sums import KeySums, add_keys, bring_to_common_scale, rescale
from efficient_attention.attention.features.noncausal import attend_noncausal
from efficient_attention.attention.features.segment_sorting import has_one_segment
from efficient_attention.attention.mechanism import Mechanism, unsupported_error
from efficient_attention.attention.partial_softmax import Partial
from efficient_attention.attention.request import QueryKeyPair, Request
from efficient_attention.attention.sequence_parallel.ring import RingExchange, attend_ring, merge_results_of_devices
from efficient_attention.attention.sequence_parallel.ring_steps import Block, RingStep, make_local_step, make_ring_steps
from efficient_attention.attention.sequence_parallel.sequence_split import AXIS, SequenceSplit

DIAGONAL, ALL = 'diagonal', 'all'  # kinds of blocks: queries read keys up to themselves, or read every key


def attend_features_shard(
    request: Request, split: SequenceSplit, features: FeatureMap, chunk: int
) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns linear attention for this device's queries, in the query's dtype; `chunk` is the number of positions in a
    chunk of the causal form.
    """
    check_supported(request)
    if request.mechanism.is_causal and not (split.has_query_shares and split.has_key_shares):
        raise unsupported_error(
            'a sequence axis', f'support for causal {request.mechanism.name} on rows that it does not divide'
        )
    if request.segments is None:
        return attend_sharded_sums(request, split, features, chunk).astype(request.query.dtype), None
    segments = request.segments
    valid_BM = jnp.not_equal(segments.key, 0)
    out_BLHK = jax.lax.cond(
        is_one_segment(segments, split),
        lambda: attend_sharded_sums(request, split, features, chunk, valid_BM),
        lambda: attend_packed_ring(request, segments, split, features, chunk),
    )
    out_BLHK = jnp.where(jnp.not_equal(segments.query, 0)[..., None, None], out_BLHK, 0.0)
    return out_BLHK.astype(request.query.dtype), None


def attend_sharded_sums(
    request: Request, split: SequenceSplit, features: FeatureMap, chunk: int, valid_BM: Array | None = None
) -> Float[Array, 'B L H K']:
    """Returns float32 outputs of this device's queries for rows whose keys are one segment, or one segment and
    padding.
    """
    query, key, value = request.query, request.key, request.value
    if not request.mechanism.is_causal:
        return attend_noncausal(query, key, value, valid_BM, features, AXIS if split.has_key_shares else None)
    before = preceding_device_sums(local_key_sums(request, features, chunk, valid_BM), split)
    return attend_causal(FeatureAttentionInputs(query, key, value, valid_BM), before, features, chunk)[0][0]


def local_key_sums(request: Request, features: FeatureMap, chunk: int, valid_BM: Array | None) -> KeySums:
    """Returns the key sums over only this device's keys."""
    batch, keys = request.key.shape[:2]
    size = min(chunk, keys)
    chunks = (
        cut_keys(request.key, size),
        cut_keys(request.value, size),
        split_mask_into_chunks(valid_BM, batch, keys, size),
    )

    def add(sums: KeySums, chunk: tuple[Array, Array, Array | None]) -> tuple[KeySums, None]:
        key_BGCK, value_BGCK, valid_BC = chunk
        sums, key_BGCR = bring_to_common_scale(sums, mask_keys(features.map_to_log_features(key_BGCK), valid_BC))
        return add_keys(sums, key_BGCR, value_BGCK), None

    return jax.lax.scan(jax.checkpoint(add, prevent_cse=False), zero_sums_like(request.key, features), chunks)[0]


def preceding_device_sums(own: KeySums, split: SequenceSplit) -> KeySums:
    """Returns the key sums over the keys of all devices before this one on the sequence axis."""
    of_all: KeySums = jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS), own)
    is_before_p111 = (jnp.arange(split.count) < split.device())[:, None, None, None]
    stabilisers_pBGR = jax.lax.stop_gradient(jnp.where(is_before_p111, of_all.stabiliser_BGR, MASKED))
    highest_BGR = stabilisers_pBGR.max(axis=0)
    scaled = jax.vmap(functools.partial(rescale, stabiliser_BGR=highest_BGR))(
        of_all._replace(stabiliser_BGR=stabilisers_pBGR)
    )
    sums_BGRK = jnp.where(is_before_p111[..., None], scaled.sums_BGRK, 0.0).sum(axis=0)
    return KeySums(sums_BGRK, jnp.where(is_before_p111, scaled.normaliser_BGR, 0.0).sum(axis=0), highest_BGR)


def is_one_segment(segments: QueryKeyPair, split: SequenceSplit) -> Array:
    """Returns one boolean, equal on all devices: whether every row of the batch holds at most one segment besides
    padding.
    """

    def whole(segments_BL: Array, has_shares: bool) -> Array:
        return jax.lax.all_gather(segments_BL, AXIS, axis=1, tiled=True) if has_shares else segments_BL

    return has_one_segment(whole(segments.query, split.has_query_shares), whole(segments.key, split.has_key_shares))


def attend_packed_ring(
    request: Request, segments: QueryKeyPair, split: SequenceSplit, features: FeatureMap, chunk: int
) -> Float[Array, 'B L H K']:
    """Returns float32 outputs of this device's queries over the keys
    of their own segment, which may be on any device.
    """
    attend = functools.partial(attend_packed_block, request, chunk)
    part = attend_ring(
        RingExchange(AXIS, plan_ring_steps(request.mechanism, split), attend),
        request.query,
        (request.key, request.value),
        segments.key,
        (segments.query, features),
    )
    if split.has_key_shares and not split.has_query_shares:
        part = merge_results_of_devices(AXIS, part)
    return part[0]


def plan_ring_steps(mechanism: Mechanism, split: SequenceSplit) -> tuple[RingStep, ...]:
    """Returns the steps of ring attention for packed rows, in the order in which devices take them.

    If devices hold shares of both queries and keys, keys travel around the devices. A causal mechanism sends no keys
    to a device whose queries all come before these keys. If only queries or only keys are shared out, no key travels,
    and one step computes everything.
    """

    def kind(query: int, key: int) -> str | None:
        if not mechanism.is_causal:
            return ALL
        return DIAGONAL if query == key else ALL if key < query else None

    if split.has_query_shares and split.has_key_shares:
        return make_ring_steps(split.count, kind)
    return (make_local_step(dict.fromkeys(range(split.count), (0, 0)), kind),)


def attend_packed_block(
    request: Request, chunk: int, block: Block, query_BLHK: Array, keys: Any, labels_BM: Array, fixed: Any
) -> Partial:
    """Returns attention of this device's queries over one block of received keys. Of `request`, the function reads only
    the mechanism.
    """
    (key_BMGK, value_BMGK), (segments_BL, features) = keys, fixed
    mechanism: Any = request.mechanism
    if block[0] != block[1]:
        mechanism = dataclasses.replace(mechanism, causal=False)
    request = dataclasses.replace(request, query=query_BLHK, key=key_BMGK, value=value_BMGK, mechanism=mechanism)

    def computed() -> Partial:
        # If queries and keys share one segments array, a query and its key share an entry of the sorted order.
        sides = (
            QueryKeyPair(labels_BM, labels_BM)
            if block[0] == block[1] and mechanism.causal
            else QueryKeyPair(segments_BL, labels_BM)
        )
        out_BLHK, lse_BLH = attend_segments(request, sides, features, chunk)
        has_key_BL11 = jnp.not_equal(segments_BL, 0)[..., None, None]
        lse_BLH = jnp.where(has_key_BL11[..., 0], lse_BLH, MASKED)
        return jnp.where(has_key_BL11, out_BLHK, 0.0), lse_BLH.swapaxes(1, 2)

    def nothing() -> Partial:
        lse_BLH = jnp.full(query_BLHK.shape[:3], MASKED, jnp.float32)
        return jnp.zeros(query_BLHK.shape, jnp.float32), lse_BLH.swapaxes(1, 2)

    return jax.lax.cond(may_share_segment(segments_BL, labels_BM), computed, nothing)


def may_share_segment(query_segments_BL: Array, key_segments_BM: Array) -> Array:
    """Returns one boolean: whether in any row the ranges of segment numbers of queries and
    of keys overlap, ignoring padding.
    """

    def run(segments: Array) -> tuple[Array, Array]:
        most = jnp.iinfo(segments.dtype).max
        return jnp.where(segments == 0, most, segments).min(axis=1), segments.max(axis=1)

    (low_B, high_B), (other_low_B, other_high_B) = run(query_segments_BL), run(key_segments_BM)
    return ((low_B <= other_high_B) & (other_low_B <= high_B)).any()
