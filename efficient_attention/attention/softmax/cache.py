"""The cache of causal softmax attention: keys and values in slots, for as long as the pattern lets a query read them.

- Where no key is read from farther than a distance r (`causal & window(r)`, `causal & block(r + 1)`), a ring of r + 1
  slots, whatever the length;
- otherwise slots that are handed on: for a largest length the host computes the last query that reads each key, and a
  key takes over the slot of one that nobody reads any more. `sparse_fixed(128, 8)` keeps a block and the summary
  columns, `causal` and `sparse_strided` everything.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.merge import merge
from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.relative import Relative, relative_logits
from efficient_attention.attention.room import Bias
from efficient_attention.attention.softmax.cache_slots import Slots, slots_of
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.weights import masked_softmax


class KeyCache(NamedTuple):
    """Keys and values in M slots, their int32 positions and segments; segment 0 = an empty slot.

    Slots stand behind heads, as matrix products want them: otherwise each token would transpose the whole cache.
    """

    key_BGMK: Array
    value_BGMK: Array
    positions_BM: Array
    segments_BM: Array


class LogitTerms(NamedTuple):
    """What is added to the logits of new tokens, each None where there is none."""

    bias: Bias | None
    relative: Relative | None


def pattern_of(spec: CacheSpec) -> Pattern:
    """The pattern of what is decoded, for `max_length` keys."""
    return of_kind(Softmax, spec.mechanism).pattern.for_keys(spec.max_length)


def slots_of_spec(spec: CacheSpec) -> Slots:
    """Which slot keeps which key of what is decoded."""
    return slots_of(pattern_of(spec), spec.heads, spec.max_length)


def init(spec: CacheSpec, batch: int, dtype: DTypeLike, _: Array | None) -> KeyCache:
    """The cache before any token: empty slots for `batch` rows; keys and values in this dtype."""
    slots = slots_of_spec(spec).count
    keys_BGMK = jnp.zeros((batch, spec.key_heads, slots, spec.width), dtype)
    numbers_BM = jnp.zeros((batch, slots), jnp.int32)
    return KeyCache(keys_BGMK, keys_BGMK, numbers_BM, numbers_BM)


def decode(
    spec: CacheSpec, cache: KeyCache, new: NewTokens, bias: Bias | None, relative: Relative | None
) -> tuple[Array, KeyCache]:
    """Outputs [B, n, H, K] of the new tokens in the query's dtype, and the cache that includes them.

    Outputs beyond `max_length` are NaN where the cache is no ring.
    """
    slots = slots_of_spec(spec)
    added = KeyCache(new.key.swapaxes(1, 2), new.value.swapaxes(1, 2), new.positions, new.segments)
    out_BnHK, cache = decode_keys(spec, cache, new.query, added, LogitTerms(bias, relative))
    out_BnHK = out_BnHK.astype(new.query.dtype)
    if not slots.is_ring:
        is_beyond_Bn = (new.positions >= spec.max_length) & (new.segments != 0)
        out_BnHK = jnp.where(is_beyond_Bn[..., None, None], jnp.nan, out_BnHK)
    return out_BnHK, cache


def decode_keys(
    spec: CacheSpec, cache: KeyCache, query_BnHK: Array, new: KeyCache, terms: LogitTerms
) -> tuple[Array, KeyCache]:
    """Float32 outputs [B, n, H, K] of queries that read the cache and the new keys, and the cache with the new keys."""
    slots = slots_of_spec(spec)
    if query_BnHK.shape[1] == 1:
        # Written before it is read, and that once, the cache of a loop over tokens is changed in place, not copied.
        cache = jax.lax.optimization_barrier(write(slots, cache, new))
        return read_keys(spec, query_BnHK, new, cache, terms)[0], cache
    results = [read_keys(spec, query_BnHK, new, keys, terms) for keys in (cache, new)]
    return merge(results)[0], write(slots, cache, new)


def read_keys(
    spec: CacheSpec, query_BnHK: Array, new: KeyCache, keys: KeyCache, terms: LogitTerms
) -> tuple[Float[Array, 'B n H K'], Float[Array, 'B H n']]:
    """Float32 outputs and log-sum-exp of the queries of tokens `new` over these keys alone."""
    batch, count, heads, width = query_BnHK.shape
    q_BnGhK = (query_BnHK * (1.0 / math.sqrt(width))).reshape(batch, count, spec.key_heads, -1, width)
    q_BGhnK = q_BnGhK.transpose(0, 2, 3, 1, 4)
    logits_BGhnM = jnp.einsum('BGhnK,BGMK->BGhnM', q_BGhnK, keys.key_BGMK, preferred_element_type=jnp.float32)
    is_same_B1nM = new.segments_BM[:, None, :, None] == keys.segments_BM[:, None, None]
    is_same_B1nM = is_same_B1nM & (keys.segments_BM != 0)[:, None, None]
    allowed_BhnM = allowed_pairs(spec, new.positions_BM, keys.positions_BM) & is_same_B1nM
    logits_BHnM = logits_BGhnM.reshape(batch, heads, count, -1)
    if terms.relative is not None:
        logits_BHnM = logits_BHnM + relative_logits(terms.relative, new.positions_BM, keys.positions_BM)
    if terms.bias is not None:
        values = terms.bias(new.positions_BM[:, None, :, None], keys.positions_BM[:, None, None, :])
        logits_BHnM = logits_BHnM + values.astype(jnp.float32)
    weights_BHnM, lse_BHn = masked_softmax(logits_BHnM, allowed_BhnM)
    weights_BGhnM = weights_BHnM.astype(query_BnHK.dtype).reshape(logits_BGhnM.shape)
    out_BGhnK = jnp.einsum('BGhnM,BGMK->BGhnK', weights_BGhnM, keys.value_BGMK, preferred_element_type=jnp.float32)
    return out_BGhnK.reshape(batch, heads, count, width).swapaxes(1, 2), lse_BHn


def allowed_pairs(
    spec: CacheSpec, query_positions_Bn: Int[Array, 'B n'], key_positions_BM: Int[Array, 'B M']
) -> Bool[Array, 'B h n M']:
    """Which query the pattern lets read which key; h is 1 where heads do not differ."""
    patterns = head_patterns(pattern_of(spec), spec.heads)
    pairs = query_positions_Bn[:, :, None], key_positions_BM[:, None, :]
    return jnp.stack([pattern(*pairs) for pattern in patterns], axis=1)


def write(slots: Slots, cache: KeyCache, new: KeyCache) -> KeyCache:
    """The cache after the new keys were written into their slots; of several keys for one slot the newest stays."""
    last_B1 = jnp.where(new.segments_BM != 0, new.positions_BM, -1).max(axis=1, keepdims=True)
    is_kept_Bn = (new.segments_BM != 0) & (slots.next_key(new.positions_BM) > last_B1)
    places_Bn = jnp.where(is_kept_Bn, slots.slot(new.positions_BM), slots.count)  # one beyond the last slot is dropped
    put = jax.vmap(lambda old, place, fresh: old.at[..., place, :].set(fresh.astype(old.dtype), mode='drop'))
    numbers = (
        put(old[..., None], places_Bn, fresh[..., None])[..., 0] for old, fresh in zip(cache[2:], new[2:], strict=True)
    )
    return KeyCache(
        put(cache.key_BGMK, places_Bn, new.key_BGMK), put(cache.value_BGMK, places_Bn, new.value_BGMK), *numbers
    )
