"""The decoding cache of causal attention over a pattern: slots hold keys and values
for as long as some later query may read them.

- If no key is read from farther than a distance r (`causal & window(r)`, `causal & block(r + 1)`), the cache is a ring
  of r + 1 slots for any length.
- Otherwise slots are reused. For a largest length, the host computes the last query that reads each key. A new key
  takes the slot of a key that no later query reads. `sparse_fixed(128, 8)` keeps a block and the summary columns;
  `causal` and `sparse_strided` keep all keys.

The beams of a beam search are reordered after every token, but their keys do not move. Each slot has one key per beam
of a row. A number per beam and slot says which beam's key the beam reads from that slot (`BeamKeyCache`).
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int, Shaped

from efficient_attention.attention.cache_spec import CacheSpec, LogitTerms, NewTokens
from efficient_attention.attention.logits.cache_slots import CacheSlots, assign_cache_slots
from efficient_attention.attention.logits.definition import (
    PatternAttention,
    Weights,
    additive_logits,
    normalised_weights,
)
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.partial_softmax import merge_partial_softmax
from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.relative import relative_logits

# A shared beam cache is read in parts of at least LEAST_PART slots, so that empty parts can be skipped.
# Each part of a beam cache adds compiled code, so there are at most MOST_PARTS parts.
LEAST_PART, MOST_PARTS = 16, 4


class KeyCache(NamedTuple):
    """A decoding cache of keys and values in M slots, with their int32 positions and segments;
    segment 0 means an empty slot.

    The head axis comes before the slots, as matrix products need it. Otherwise each token would transpose the whole
    cache.
    """

    key_BGMK: Array
    value_BGMK: Array
    positions_BM: Array
    segments_BM: Array

    def expand_to_beams(self, count: int) -> 'BeamKeyCache':
        """Returns the decoding cache of `count` equal beams per row, which share their slots."""
        rows, slots = self.positions_BM.shape
        size = max(LEAST_PART, -(-slots // MOST_PARTS))
        parts = tuple(self.beam_cache_part(count, slice(start, start + size)) for start in range(0, slots, size))
        return BeamKeyCache(parts, jnp.zeros((rows, count, slots), jnp.int32))

    def beam_cache_part(self, count: int, part: slice) -> 'BeamCachePart':
        """Returns a range of the cache's slots, with one key and value per slot for each of `count` beams."""
        key_BGMK, value_BGMK = self.key_BGMK[:, :, part], self.value_BGMK[:, :, part]
        key_BGKwM = jnp.repeat(key_BGMK.swapaxes(2, 3)[:, :, :, None], count, axis=3)
        value_BGwMK = jnp.repeat(value_BGMK[:, :, None], count, axis=2)
        return BeamCachePart(key_BGKwM, value_BGwMK, self.positions_BM[:, part], self.segments_BM[:, part])


class BeamCachePart(NamedTuple):
    """A range of the slots of a `BeamKeyCache`; each slot has a key and value for every beam (axis w).

    The last axes of both arrays are the axes over which matrix products with queries or weights run.
    """

    key_BGKwM: Array
    value_BGwMK: Array
    positions_BM: Array
    segments_BM: Array


class BeamKeyCache(NamedTuple):
    """The decoding cache of K beams per row, which share slots; all beams of a row have read equally many tokens.

    Slots are cut into parts, so that parts that are still empty are not read. `writers_BKM` says for each beam and slot
    which beam's key it reads.
    """

    parts: tuple[BeamCachePart, ...]
    writers_BKM: Array

    def reorder_beams(self, parents_BK: Array) -> 'BeamKeyCache':
        """Returns the decoding cache after each beam continues its parent beam; no key moves."""
        return self._replace(writers_BKM=jnp.take_along_axis(self.writers_BKM, parents_BK[..., None], axis=1))


def decoding_pattern(spec: CacheSpec) -> Pattern:
    """Returns the attention pattern of the mechanism that decodes, for `max_length` keys."""
    return ensure_kind(PatternAttention, spec.mechanism).pattern.for_key_count(spec.max_length)


def cache_slots_of_spec(spec: CacheSpec) -> CacheSlots:
    """Returns which slot of the decoding cache each key takes, for the mechanism and length of this spec."""
    return assign_cache_slots(decoding_pattern(spec), spec.heads, spec.max_length)


def init(spec: CacheSpec, batch: int, dtype: DTypeLike, _: Array | None) -> KeyCache:
    """Returns the empty decoding cache for `batch` rows; keys and values have the given dtype."""
    slots = cache_slots_of_spec(spec).count
    keys_BGMK = jnp.zeros((batch, spec.key_heads, slots, spec.width), dtype)
    numbers_BM = jnp.zeros((batch, slots), jnp.int32)
    return KeyCache(keys_BGMK, keys_BGMK, numbers_BM, numbers_BM)


def decode(
    spec: CacheSpec, cache: KeyCache | BeamKeyCache, new: NewTokens, terms: LogitTerms
) -> tuple[Array, KeyCache | BeamKeyCache]:
    """Returns attention outputs [B, n, H, K] of the new tokens in the query's dtype, and the updated decoding cache.

    Outputs beyond `max_length` are NaN unless the cache is a ring.
    """
    slots = cache_slots_of_spec(spec)
    added = KeyCache(new.key.swapaxes(1, 2), new.value.swapaxes(1, 2), new.positions, new.segments)
    if isinstance(cache, BeamKeyCache):
        out_BnHK, cache = decode_beams(spec, cache, new.query, added, terms)
    else:
        out_BnHK, cache = decode_with_cache(spec, cache, new.query, added, terms)
    out_BnHK = out_BnHK.astype(new.query.dtype)
    if not slots.is_ring_buffer:
        is_beyond_Bn = (new.positions >= spec.max_length) & (new.segments != 0)
        out_BnHK = jnp.where(is_beyond_Bn[..., None, None], jnp.nan, out_BnHK)
    return out_BnHK, cache


def decode_with_cache(
    spec: CacheSpec, cache: KeyCache, query_BnHK: Array, new: KeyCache, terms: LogitTerms
) -> tuple[Array, KeyCache]:
    """Returns float32 outputs [B, n, H, K] of queries that read the cached keys and the new keys,
    and the updated decoding cache.
    """
    slots = cache_slots_of_spec(spec)
    if query_BnHK.shape[1] == 1:
        # The cache is written first and read only once, so that XLA updates it in place in a loop over tokens.
        cache = jax.lax.optimization_barrier(write_cache(slots, cache, new))
        return attend_cached_keys(spec, query_BnHK, new, cache, terms)[0], cache
    if spec.mechanism.capabilities.merges:
        results = [attend_cached_keys(spec, query_BnHK, new, keys, terms) for keys in (cache, new)]
        return merge_partial_softmax([(out, lse) for out, lse in results if lse is not None])[0], write_cache(
            slots, cache, new
        )
    return attend_cached_keys(spec, query_BnHK, new, concatenate_caches(cache, new), terms)[0], write_cache(
        slots, cache, new
    )


def concatenate_caches(cache: KeyCache, new: KeyCache) -> KeyCache:
    """Returns a decoding cache that holds all slots of both given caches."""
    keys = (jnp.concatenate([old, fresh.astype(old.dtype)], 2) for old, fresh in zip(cache[:2], new[:2], strict=True))
    numbers = (jnp.concatenate(both, axis=1) for both in zip(cache[2:], new[2:], strict=True))
    return KeyCache(*keys, *numbers)


def decode_beams(
    spec: CacheSpec, cache: BeamKeyCache, query_bnHK: Array, new: KeyCache, terms: LogitTerms
) -> tuple[Float[Array, 'b n H K'], BeamKeyCache]:
    """Returns outputs and the updated decoding cache for one new token per beam; axis b has one entry per beam of each
    row.
    """
    if query_bnHK.shape[1] != 1:
        raise ValueError(f'beams take one new token at a time, and {query_bnHK.shape[1]} are given')
    rows, count, _ = cache.writers_BKM.shape
    own = KeyCache(*(x.reshape(rows, count, *x.shape[1:]) for x in new))
    numbers = own.positions_BM[:, 0], own.segments_BM[:, 0]
    added = BeamCachePart(own.key_BGMK.transpose(0, 2, 4, 1, 3), own.value_BGMK.swapaxes(1, 2), *numbers)
    slots = cache_slots_of_spec(spec)
    places_B1 = jnp.where(added.segments_BM != 0, slots.slot_of_position(added.positions_BM), slots.count)
    put_number = jax.vmap(lambda old_KM, place: old_KM.at[:, place].set(jnp.arange(count)[:, None], mode='drop'))
    both = zip(cache_part_slices(cache), cache.parts, strict=True)
    parts = tuple(put_in_beam_slots(slots_within_part(places_B1, part), keys, added) for part, keys in both)
    after = BeamKeyCache(parts, put_number(cache.writers_BKM, places_B1))
    after = jax.lax.optimization_barrier(after)  # With this barrier, XLA updates the cache in place.
    return attend_beams(spec, query_bnHK[:, 0], new, after, terms), after


def cache_part_slices(cache: BeamKeyCache) -> list[slice]:
    """Returns the range of slots that each `BeamCachePart` of a beam cache holds, in order."""
    ends = list(itertools.accumulate((part.positions_BM.shape[1] for part in cache.parts), initial=0))
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def slots_within_part(places_Bn: Array, part: slice) -> Array:
    """Returns slot indices relative to the first slot of one `BeamCachePart`.

    A slot outside this part gets an index beyond the part's end.
    """
    is_there_Bn = (places_Bn >= part.start) & (places_Bn < part.stop)
    return jnp.where(is_there_Bn, places_Bn - part.start, part.stop - part.start)


def attend_beams(
    spec: CacheSpec, query_bHK: Array, new: KeyCache, cache: BeamKeyCache, terms: LogitTerms
) -> Float[Array, 'b 1 H K']:
    """Returns float32 attention outputs of one query per beam over the keys of a shared beam cache.

    All beams of a row are multiplied with the keys of all of them, so one product reads each key once. Axes: q the beam
    that reads, w the beam that wrote, h query heads of a key head, x slots of all writers.
    """
    rows, count, slots = cache.writers_BKM.shape
    batch, heads, width = query_bHK.shape
    groups = spec.key_heads
    q_BGqhK = scale_queries(query_bHK, terms).reshape(rows, count, groups, -1, width).swapaxes(1, 2)
    parts = cache_part_slices(cache)
    owned = [
        (keys, is_key_of_beam(cache.writers_BKM[:, :, part])) for part, keys in zip(parts, cache.parts, strict=True)
    ]
    logits = [
        compute_unless_empty(keys, functools.partial(beam_logits, terms.additive, q_BGqhK, keys, own))
        for keys, own in owned
    ]
    logits_bH1M = jnp.concatenate(logits, axis=-1).swapaxes(1, 2).reshape(batch, heads, 1, slots)
    positions_BM, segments_BM = (jnp.concatenate(x, axis=1) for x in list(zip(*cache.parts, strict=True))[2:])
    numbers = {'positions_BM': jnp.repeat(positions_BM, count, 0), 'segments_BM': jnp.repeat(segments_BM, count, 0)}
    weights_bH1M, _ = cached_key_weights(spec, logits_bH1M, new, new._replace(**numbers), terms)
    weights_BGqhM = weights_bH1M.astype(query_bHK.dtype).reshape(rows, count, groups, -1, slots).swapaxes(1, 2)
    sums = (
        compute_unless_empty(keys, functools.partial(beam_value_sums, weights_BGqhM[..., part], keys, own))
        for part, (keys, own) in zip(parts, owned, strict=True)
    )
    return functools.reduce(jnp.add, sums).swapaxes(1, 2).reshape(batch, 1, heads, width)


def is_key_of_beam(writers_BqM: Array) -> Bool[Array, 'B 1 q 1 w M']:
    """Returns whether beam q reads the key that beam w wrote into a slot."""
    numbers_w = jnp.arange(writers_BqM.shape[1]).reshape(1, 1, 1, 1, -1, 1)
    return writers_BqM[:, None, :, None, None] == numbers_w


def compute_unless_empty(keys: BeamCachePart, compute: Callable[[], Array]) -> Array:
    """Returns `compute()`; if all slots of the cache part are empty, returns zeros without reading the keys."""
    shape = jax.eval_shape(compute)
    return jax.lax.cond((keys.segments_BM != 0).any(), compute, lambda: jnp.zeros(shape.shape, shape.dtype))


def scale_queries(query: Float[Array, '... K'], terms: LogitTerms) -> Float[Array, '... K']:
    """Returns the queries times 1 / sqrt(K), or unchanged if scores are additive."""
    return query * (1.0 / math.sqrt(query.shape[-1])) if terms.additive is None else query


def beam_logits(
    vector_HK: Array | None, q_BGqhK: Array, keys: BeamCachePart, own_B1q1wM: Array
) -> Float[Array, 'B G q h M']:
    """Returns logits of each beam's queries with the keys that this beam reads: scaled products or additive scores."""
    rows, groups, count, _, width = q_BGqhK.shape
    key_BGKx = jax.lax.collapse(keys.key_BGKwM, 3)
    q_BGQK = jax.lax.collapse(q_BGqhK, 2, 4)
    if vector_HK is None:
        logits_BGQx = jnp.einsum('BGQK,BGKx->BGQx', q_BGQK, key_BGKx, preferred_element_type=jnp.float32)
    else:
        q_BqHK = q_BGqhK.swapaxes(1, 2).reshape(rows, count, -1, width)
        logits_BHqx = additive_logits(q_BqHK, key_BGKx.transpose(0, 3, 1, 2), vector_HK)
        logits_BGQx = logits_BHqx.reshape(rows, groups, -1, *logits_BHqx.shape[2:]).swapaxes(2, 3)
    logits_BGqhwM = logits_BGQx.reshape(rows, groups, count, -1, *own_B1q1wM.shape[4:])
    return jnp.where(own_B1q1wM, logits_BGqhwM, 0.0).sum(axis=4)


def beam_value_sums(weights_BGqhM: Array, keys: BeamCachePart, own_B1q1wM: Array) -> Float[Array, 'B G q h K']:
    """Returns, for each beam, the weighted sums of the values that this beam reads."""
    rows, groups, count, *_ = weights_BGqhM.shape
    value_BGxK = jax.lax.collapse(keys.value_BGwMK, 2, 4)
    weights_BGqhwM = jnp.where(own_B1q1wM, weights_BGqhM[..., None, :], 0.0)
    weights_BGQx = weights_BGqhwM.reshape(rows, groups, -1, value_BGxK.shape[2])
    out_BGQK = jnp.einsum('BGQx,BGxK->BGQK', weights_BGQx, value_BGxK, preferred_element_type=jnp.float32)
    return out_BGQK.reshape(rows, groups, count, -1, value_BGxK.shape[3])


def attend_cached_keys(
    spec: CacheSpec, query_BnHK: Array, new: KeyCache, keys: KeyCache, terms: LogitTerms
) -> tuple[Float[Array, 'B n H K'], Float[Array, 'B H n'] | None]:
    """Returns float32 attention outputs and log-sum-exp of the new tokens' queries over only the given keys."""
    batch, count, heads, width = query_BnHK.shape
    if terms.additive is None:
        q_BnGhK = scale_queries(query_BnHK, terms).reshape(batch, count, spec.key_heads, -1, width)
        q_BGhnK = q_BnGhK.transpose(0, 2, 3, 1, 4)
        logits_BGhnM = jnp.einsum('BGhnK,BGMK->BGhnM', q_BGhnK, keys.key_BGMK, preferred_element_type=jnp.float32)
        logits_BHnM = logits_BGhnM.reshape(batch, heads, count, -1)
    else:
        logits_BHnM = additive_logits(query_BnHK, keys.key_BGMK.swapaxes(1, 2), terms.additive)
    weights_BHnM, lse_BHn = cached_key_weights(spec, logits_BHnM, new, keys, terms)
    weights_BGhnM = weights_BHnM.astype(query_BnHK.dtype).reshape(batch, spec.key_heads, -1, *logits_BHnM.shape[2:])
    out_BGhnK = jnp.einsum('BGhnM,BGMK->BGhnK', weights_BGhnM, keys.value_BGMK, preferred_element_type=jnp.float32)
    return out_BGhnK.reshape(batch, heads, count, width).swapaxes(1, 2), lse_BHn


def cached_key_weights(
    spec: CacheSpec, logits_BHnM: Array, new: KeyCache, keys: KeyCache, terms: LogitTerms
) -> Weights:
    """Returns attention weights and log-sum-exp of new tokens over cached keys,
    from the logits, positions and segments.
    """
    is_same_B1nM = new.segments_BM[:, None, :, None] == keys.segments_BM[:, None, None]
    is_same_B1nM = is_same_B1nM & (keys.segments_BM != 0)[:, None, None]
    allowed_BhnM = allowed_pairs(spec, new.positions_BM, keys.positions_BM) & is_same_B1nM
    if terms.relative is not None:
        logits_BHnM = logits_BHnM + relative_logits(terms.relative, new.positions_BM, keys.positions_BM)
    if terms.bias is not None:
        values = terms.bias(new.positions_BM[:, None, :, None], keys.positions_BM[:, None, None, :])
        logits_BHnM = logits_BHnM + values.astype(jnp.float32)
    return normalised_weights(spec.mechanism, logits_BHnM, allowed_BhnM)


def allowed_pairs(
    spec: CacheSpec, query_positions_Bn: Int[Array, 'B n'], key_positions_BM: Int[Array, 'B M']
) -> Bool[Array, 'B h n M']:
    """Returns which query may read which key according to the pattern;
    axis h has size 1 if all heads have the same pattern.
    """
    patterns = head_patterns(decoding_pattern(spec), spec.heads)
    pairs = query_positions_Bn[:, :, None], key_positions_BM[:, None, :]
    return jnp.stack([pattern(*pairs) for pattern in patterns], axis=1)


def write_cache(slots: CacheSlots, cache: KeyCache, new: KeyCache) -> KeyCache:
    """Returns the decoding cache with new keys written to their slots;
    if several new keys have one slot, the newest stays.
    """
    last_B1 = jnp.where(new.segments_BM != 0, new.positions_BM, -1).max(axis=1, keepdims=True)
    is_kept_Bn = (new.segments_BM != 0) & (slots.next_position_in_slot(new.positions_BM) > last_B1)
    # The scatter below drops keys with slot index `count`.
    places_Bn = jnp.where(is_kept_Bn, slots.slot_of_position(new.positions_BM), slots.count)
    return put_in_slots(places_Bn, cache, new)


def put_in_slots(places_Bn: Array, cache: KeyCache, new: KeyCache) -> KeyCache:
    """Returns the decoding cache with the new keys written to the given slots;
    keys whose slot index is beyond the last slot are dropped.
    """
    keys = (scatter_rows(old, places_Bn, fresh) for old, fresh in zip(cache[:2], new[:2], strict=True))
    return KeyCache(
        *keys, *(scatter_last_axis(old, places_Bn, fresh) for old, fresh in zip(cache[2:], new[2:], strict=True))
    )


def put_in_beam_slots(places_B1: Array, part: BeamCachePart, new: BeamCachePart) -> BeamCachePart:
    """Returns a part of a beam cache with new keys written to slots of these indices; keys with an index beyond the
    last slot are dropped.
    """
    return BeamCachePart(
        scatter_last_axis(part.key_BGKwM, places_B1, new.key_BGKwM),
        scatter_rows(part.value_BGwMK, places_B1, new.value_BGwMK),
        scatter_last_axis(part.positions_BM, places_B1, new.positions_BM),
        scatter_last_axis(part.segments_BM, places_B1, new.segments_BM),
    )


def scatter_rows(
    old: Shaped[Array, 'B *axes M K'], places_Bn: Array, fresh: Shaped[Array, 'B *axes n K']
) -> Shaped[Array, 'B *axes M K']:
    """Returns `old` with the vectors `fresh` written at these indices of the second-last axis; other vectors stay."""
    put_one = jax.vmap(lambda old, place, fresh: old.at[..., place, :].set(fresh.astype(old.dtype), mode='drop'))
    return put_one(old, places_Bn, fresh)


def scatter_last_axis(
    old: Shaped[Array, 'B *axes M'], places_Bn: Array, fresh: Shaped[Array, 'B *axes n']
) -> Shaped[Array, 'B *axes M']:
    """Returns `old` with `fresh` written at these indices of the last axis; other entries stay."""
    put_one = jax.vmap(lambda old, place, fresh: old.at[..., place].set(fresh.astype(old.dtype), mode='drop'))
    return put_one(old, places_Bn, fresh)
