"""Computes causal attention with a feature map, in chunks of positions. A CPU computes one chunk after another, so no
array holds the features of all positions. Accelerators compute all chunks at once.

A masked product covers the pairs inside each chunk, and running sums cover all keys before the chunk. The maxima that
scale the features run along with the sums, so later keys affect the scale of no earlier chunk.

Suppose that in every feature all keys of a query lie more than a factor 1e30 below later keys of its chunk. The
common scale then loses that query: its weights are all zero. If this happens at run time, all chunks are computed
again, with the logarithms of each pair inside a chunk. The second computation is slower and has no such limit. With
relu features, a query may also share no non-zero feature with any key. Such queries do not trigger the second
computation.

Equal segments are neighbours, so the running sums of a chunk cover only the one segment that is open at its start.

Axes: G key heads with h query heads each, C positions of a chunk, R features.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.features.chunk_attention import (
    AttendChunk,
    ChunkKeys,
    Outputs,
    attend_chunk,
    attend_chunk_exactly,
    causal_chunk_mask,
    find_queries_with_features,
)
from efficient_attention.attention.features.chunks import (
    FeatureAttentionInputs,
    PositionChunk,
    cut_inputs,
    merge_chunks,
)
from efficient_attention.attention.features.feature_map import FeatureMap, invert_denominators, mask_keys
from efficient_attention.attention.features.key_sums import KeySums, add_keys, bring_to_common_scale, zero_key_sums
from efficient_attention.attention.features.parallel_chunks import QuerySums, sum_all_chunks, sum_gradients
from efficient_attention.attention.features.segment_sums import (
    SegmentSums,
    causal_segment_step,
    combine_sums,
    reverse_segment_step,
    segments_of,
)

Carry = Any  # carried from chunk to chunk: KeySums, or SegmentSums for packed segments

# Maps the sums before a chunk to the sums after the chunk, and to outputs of the chunk's queries.
ChunkStep = Callable[[Carry, PositionChunk], tuple[Carry, Outputs]]


def attend_causal(
    inputs: FeatureAttentionInputs,
    sums: KeySums,
    features: FeatureMap,
    size: int,
    *,
    reads: str = 'earlier',
) -> tuple[Outputs, KeySums]:
    """Returns the float32 outputs [B, L, H, K] and log-sum-exps [B, L, H] of causal queries,
    and the key sums after all keys are added.

    The other two values of `reads` divide the keys of a query's segment into two parts, for a form that is not causal.

    Args:
        inputs: L >= 1 positions.
        sums: over keys that come before all positions.
        features: the feature map of queries and keys.
        size: most positions of a chunk.
        reads: 'earlier' = a query reads itself and earlier keys. With segments also 'chunk' = earlier keys and its
            whole chunk, 'later' = keys after its chunk.
    """
    has_all_at_once = device_tuning().feature_prefix_sums
    if inputs.segments_BL is None and has_all_at_once:
        return attend_causal_at_once(inputs, sums, features, size)
    length = inputs.query_BLHK.shape[1]
    chunks = cut_inputs(inputs, min(size, length))
    go = functools.partial(scan_segments_in_parallel, features) if has_all_at_once else scan_sequentially
    start: Carry = sums
    if inputs.segments_BL is not None:
        first_B = inputs.segments_BL[:, -1 if reads == 'later' else 0]
        start = SegmentSums(sums, first_B, jnp.ones(first_B.shape, bool))
    if reads == 'later':
        reverse_step = functools.partial(reverse_segment_step, features=features)
        last, outputs = go(reverse_step, start, jax.tree.map(jnp.flipud, chunks))
        out_BLHK, lse_BLH = (merge_chunks(jnp.flipud(x), length) for x in outputs)
        return (out_BLHK, lse_BLH), last.sums
    last, outputs = go(make_chunk_step(inputs, features, reads, attend_chunk), start, chunks)
    out_BLHK, lse_BLH = (merge_chunks(x, length) for x in outputs)
    if reads == 'earlier':

        def rescan_chunks(attend: AttendChunk) -> Outputs:
            out, lse = scan_sequentially(make_chunk_step(inputs, features, reads, attend), start, chunks)[1]
            return merge_chunks(out.astype(out_BLHK.dtype), length), merge_chunks(lse, length)

        exactly = jax.checkpoint(functools.partial(rescan_chunks, attend_chunk_exactly))

        def rescan_if_features_overlap() -> Outputs:
            """Returns exactly recomputed outputs if the common scale lost a query, else the outputs so far.

            A lost query has only weights of zero, but shares a non-zero feature with a key that it may read.
            """
            is_reader_BLH = rescan_chunks(find_queries_with_features)[1] > MASKED / 2
            return jax.lax.cond((is_lost_BLH & is_reader_BLH).any(), exactly, lambda: (out_BLHK, lse_BLH))

        is_lost_BLH = (lse_BLH <= MASKED / 2) & has_readable_key(inputs, sums)[..., None]
        out_BLHK, lse_BLH = jax.lax.cond(
            is_lost_BLH.any(),
            rescan_if_features_overlap if features.has_zeros else exactly,
            lambda: (out_BLHK, lse_BLH),
        )
    return (out_BLHK.astype(jnp.float32), lse_BLH), last if inputs.segments_BL is None else last.sums


Masks = tuple[Array | None, Array | None]  # valid keys and used queries


class Operands(NamedTuple):
    """The arrays of `attend_causal_at_once` that get gradients."""

    query_BLHK: Array
    key_BLGK: Array
    value_BLGK: Array
    sums: KeySums
    features: FeatureMap


def attend_causal_at_once(
    inputs: FeatureAttentionInputs, sums: KeySums, features: FeatureMap, size: int
) -> tuple[Outputs, KeySums]:
    """Returns the results of `attend_causal` for rows of one text, computed for all chunks at once.

    The backward pass differentiates only the form that gave the outputs. If JAX differentiated the conditional, the
    gradients of both forms would be added, and the form that did not run would write zeros.
    """
    length = inputs.query_BLHK.shape[1]

    dtype = jnp.bfloat16 if inputs.value_BLGK.dtype == jnp.bfloat16 else jnp.float32

    def as_inputs(operands: Operands, masks: Masks) -> FeatureAttentionInputs:
        return FeatureAttentionInputs(*operands[:3], valid_BL=masks[0], used_query_BL=masks[1])

    def cut(operands: Operands, masks: Masks) -> PositionChunk:
        return cut_inputs(as_inputs(operands, masks), min(size, length))

    def at_once(operands: Operands, masks: Masks) -> tuple[tuple[QuerySums, Array], KeySums]:
        return sum_all_chunks(operands.sums, cut(operands, masks), operands.features)

    def one_by_one(operands: Operands, masks: Masks, attend: AttendChunk) -> Outputs:
        step = functools.partial(causal_step, features=operands.features, attend=attend)
        out, lse = scan_sequentially(step, operands.sums, cut(operands, masks))[1]
        return merge_chunks(out.astype(dtype), length), merge_chunks(lse, length)

    exactly = functools.partial(one_by_one, attend=attend_chunk_exactly)

    def has_lost_query(operands: Operands, masks: Masks, lse_BLH: Array) -> Array:
        is_lost_BLH = (lse_BLH <= MASKED / 2) & has_readable_key(as_inputs(operands, masks), operands.sums)[..., None]
        if not features.has_zeros:
            return is_lost_BLH.any()

        def has_lost_reader() -> Array:
            is_reader_BLH = one_by_one(operands, masks, find_queries_with_features)[1] > MASKED / 2
            return (is_lost_BLH & is_reader_BLH).any()

        return jax.lax.cond(is_lost_BLH.any(), has_lost_reader, lambda: jnp.zeros((), bool))

    @jax.custom_vjp
    def attend(operands: Operands, masks: Masks) -> tuple[Outputs, KeySums]:
        return forward(operands, masks)[0]

    def forward(operands: Operands, masks: Masks) -> tuple[tuple[Outputs, KeySums], Any]:
        ((sums, scale_nBGhC), last), pull = jax.vjp(lambda operands: at_once(operands, masks), operands)
        inverse_nBGhC, lse_nBGhC = invert_denominators(sums.denominators(), scale_nBGhC)
        lse_BLH = merge_chunks(lse_nBGhC, length)
        is_lost = has_lost_query(operands, masks, lse_BLH)
        # The division is inside the conditional. If it came before, XLA would copy the outputs into the conditional.
        outputs = jax.lax.cond(
            is_lost,
            lambda: exactly(operands, masks),
            lambda: (merge_chunks(sums.divided(inverse_nBGhC).astype(dtype), length), lse_BLH),
        )
        return (outputs, last), (operands, masks, is_lost, pull, outputs, inverse_nBGhC)

    def backward(saved: Any, gradients: tuple[Outputs, KeySums]) -> tuple[Operands, None]:
        operands, masks, is_lost, pull, outputs, inverse_nBGhC = saved

        def pull_sums(gradients: tuple[Outputs, KeySums]) -> Operands:
            dsums = sum_gradients(outputs, gradients[0], inverse_nBGhC)
            return pull(((dsums, jnp.zeros_like(inverse_nBGhC)), gradients[1]))[0]

        def pull_exactly() -> Operands:
            of_last = pull_sums((jax.tree.map(jnp.zeros_like, gradients[0]), gradients[1]))
            of_outputs = jax.vjp(lambda operands: exactly(operands, masks), operands)[1](gradients[0])[0]
            return jax.tree.map(jnp.add, of_last, of_outputs)

        return jax.lax.cond(is_lost, pull_exactly, lambda: pull_sums(gradients)), None

    attend.defvjp(forward, backward)
    masks = inputs.valid_BL, inputs.used_query_BL
    (out_BLHK, lse_BLH), last = attend(Operands(*inputs[:3], sums, features), masks)
    return (out_BLHK.astype(jnp.float32), lse_BLH), last


def make_chunk_step(inputs: FeatureAttentionInputs, features: FeatureMap, reads: str, attend: AttendChunk) -> ChunkStep:
    """Returns the step of a scan over chunks of the inputs; the function `attend` computes attention of queries to the
    keys of their own chunk.
    """
    if inputs.segments_BL is None:
        return functools.partial(causal_step, features=features, attend=attend)
    return functools.partial(causal_segment_step, features=features, attend=attend, reads=reads)


def causal_step(
    before: KeySums, chunk: PositionChunk, *, features: FeatureMap, attend: AttendChunk
) -> tuple[KeySums, Outputs]:
    """Computes one chunk of causal linear attention: returns the key sums after the chunk,
    and outputs and log-sum-exp of the chunk's queries.
    """
    chunk = chunk.in_float32()
    key_logs_BGCR = mask_keys(features.map_to_log_features(chunk.key_BGCK), chunk.valid_BC)
    sums, key_BGCR = bring_to_common_scale(before, key_logs_BGCR)
    query_logs_BGhCR = features.map_to_log_features(chunk.query_BGhCK)
    keys = ChunkKeys(before, sums, key_logs_BGCR, key_BGCR, chunk.value_BGCK)
    after = add_keys(sums, key_BGCR, chunk.value_BGCK)
    return after, attend(query_logs_BGhCR, keys, causal_chunk_mask(chunk.key_BGCK.shape[2]), None)


def has_readable_key(inputs: FeatureAttentionInputs, sums: KeySums) -> Bool[Array, 'B L']:
    """Returns whether each query may read any key: a key that is already in the sums,
    or a key of its segment up to its own position.

    It is False for unused queries.
    """
    if inputs.used_query_BL is not None:
        used_BL = inputs.used_query_BL
        return used_BL & has_readable_key(inputs._replace(used_query_BL=None), sums)
    segments_BL, shape = inputs.segments_BL, inputs.query_BLHK.shape[:2]
    valid_BL = jnp.ones(shape, bool) if inputs.valid_BL is None else inputs.valid_BL
    numbers_1L = jnp.arange(shape[1])[None]
    last_key_BL = jax.lax.cummax(jnp.where(valid_BL, numbers_1L, -1), axis=1)
    if segments_BL is None:
        return (last_key_BL >= 0) | (sums.stabiliser_BGR > MASKED / 2).any(axis=(1, 2))[:, None]
    is_first_BL = jnp.pad(segments_BL[:, 1:] != segments_BL[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return last_key_BL >= jax.lax.cummax(jnp.where(is_first_BL, numbers_1L, 0), axis=1)


def scan_sequentially(step: ChunkStep, start: Carry, chunks: PositionChunk) -> tuple[Carry, Outputs]:
    """Computes all chunks one after another; returns the key sums after the last chunk, and all outputs [n, ...].

    On a CPU, recomputing a chunk in the backward pass costs less than reading its features [C, R] back from memory.
    """
    return jax.lax.scan(jax.checkpoint(step, prevent_cse=False), start, chunks)


def scan_segments_in_parallel(
    features: FeatureMap, step: ChunkStep, start: Carry, chunks: PositionChunk
) -> tuple[Carry, Outputs]:
    """Returns the same results as `scan_sequentially` for packed segments, computed for all chunks in parallel by a
    prefix sum.

    The function first computes each chunk's own sums, then the sums before each chunk, then all outputs.
    """
    step = jax.checkpoint(step)

    def alone(chunk: PositionChunk) -> SegmentSums:
        batch, key_heads, _, width = chunk.key_BGCK.shape
        empty = zero_key_sums(batch, key_heads, features.feature_count(width), width)
        return step(SegmentSums(empty, segments_of(chunk)[:, 0], jnp.ones(batch, bool)), chunk)[0]

    carries = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, jax.vmap(alone)(chunks))
    carries = jax.lax.associative_scan(jax.vmap(combine_sums), carries)
    before, last = jax.tree.map(lambda x: x[:-1], carries), jax.tree.map(lambda x: x[-1], carries)
    return last, jax.vmap(lambda carry, chunk: step(carry, chunk)[1])(before, chunks)
