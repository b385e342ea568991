"""The cache of causal softmax attention: keys and values in slots, for as long as the pattern lets a query read them.

- Where no key is read from farther than a distance r (`causal & window(r)`, `causal & block(r + 1)`), a ring of r + 1
  slots, whatever the length;
- otherwise slots that are handed on: for a largest length the host computes the last query that reads each key, and a
  key takes over the slot of one that nobody reads any more. `sparse_fixed(128, 8)` keeps a block and the summary
  columns, `causal` and `sparse_strided` everything.

Hypotheses of a beam search change places after every token. Their keys do not: each slot has one of each hypothesis of
a row, and a number for each hypothesis and slot says whose key is its own (`SharedKeys`).
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

    def with_hypotheses(self, count: int) -> 'SharedKeys':
        """What `count` hypotheses of each row keep, all alike; see `attention.cache.with_hypotheses`."""
        keys = self._replace(
            key_BGMK=jnp.repeat(self.key_BGMK, count, 1), value_BGMK=jnp.repeat(self.value_BGMK, count, 1)
        )
        return SharedKeys(keys, jnp.zeros((len(self.positions_BM), count, self.positions_BM.shape[1]), jnp.int32))


class SharedKeys(NamedTuple):
    """The keys of K hypotheses of each row, which all have read as many tokens.

    Of `keys`, G counts the key heads of all hypotheses: those of the first key head, then those of the second, ...
    `writers_BKM` says whose key each of them reads in each slot.
    """

    keys: KeyCache
    writers_BKM: Array

    def go_on_from(self, parents_BK: Array) -> 'SharedKeys':
        """See `attention.cache.go_on_from`."""
        return self._replace(writers_BKM=jnp.take_along_axis(self.writers_BKM, parents_BK[..., None], axis=1))


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
    spec: CacheSpec, cache: KeyCache | SharedKeys, new: NewTokens, bias: Bias | None, relative: Relative | None
) -> tuple[Array, KeyCache | SharedKeys]:
    """Outputs [B, n, H, K] of the new tokens in the query's dtype, and the cache that includes them.

    Outputs beyond `max_length` are NaN where the cache is no ring.
    """
    slots, terms = slots_of_spec(spec), LogitTerms(bias, relative)
    added = KeyCache(new.key.swapaxes(1, 2), new.value.swapaxes(1, 2), new.positions, new.segments)
    if isinstance(cache, SharedKeys):
        out_BnHK, cache = decode_shared(spec, cache, new.query, added, terms)
    else:
        out_BnHK, cache = decode_keys(spec, cache, new.query, added, terms)
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


def decode_shared(
    spec: CacheSpec, cache: SharedKeys, query_bnHK: Array, new: KeyCache, terms: LogitTerms
) -> tuple[Float[Array, 'b n H K'], SharedKeys]:
    """As `decode_keys`, of one new token for each hypothesis; b = B rows of K hypotheses each."""
    if query_bnHK.shape[1] != 1:
        raise ValueError(f'hypotheses go on by one token each, and {query_bnHK.shape[1]} are given')
    rows, count, _ = cache.writers_BKM.shape
    own = KeyCache(*(x.reshape(rows, count, *x.shape[1:]) for x in new))
    key_BGMK, value_BGMK = (jax.lax.collapse(x.swapaxes(1, 2), 1, 3) for x in own[:2])
    added = KeyCache(key_BGMK, value_BGMK, own.positions_BM[:, 0], own.segments_BM[:, 0])
    slots = slots_of_spec(spec)
    places_B1 = slots.slot(added.positions_BM)
    put = jax.vmap(lambda old_KM, place: old_KM.at[:, place].set(jnp.arange(count)[:, None], mode='drop'))
    after = SharedKeys(write(slots, cache.keys, added), put(cache.writers_BKM, places_B1))
    after = jax.lax.optimization_barrier(after)  # as in `decode_keys`
    return read_shared(spec, query_bnHK[:, 0], new, after, terms), after


def read_shared(
    spec: CacheSpec, query_bHK: Array, new: KeyCache, cache: SharedKeys, terms: LogitTerms
) -> Float[Array, 'b 1 H K']:
    """Float32 outputs of the queries of one token a hypothesis.

    All hypotheses of a row are multiplied with the keys of all of them: one product reads each key once. Axes: q the
    hypothesis that reads, w the one that wrote, h query heads of a key head, x slots of all that wrote.
    """
    rows, count, slots = cache.writers_BKM.shape
    batch, heads, width = query_bHK.shape
    groups = spec.key_heads
    writers_B1q11M = cache.writers_BKM[:, None, :, None, None]
    is_own_B1q1wM = writers_B1q11M == jnp.arange(count).reshape(1, 1, 1, 1, count, 1)
    q_BqGhK = (query_bHK * (1.0 / math.sqrt(width))).reshape(rows, count, groups, -1, width)
    q_BGQK = jax.lax.collapse(q_BqGhK.swapaxes(1, 2), 2, 4)
    key_BGxK, value_BGxK = (x.reshape(rows, groups, count * slots, width) for x in cache.keys[:2])
    logits_BGQx = jnp.einsum('BGQK,BGxK->BGQx', q_BGQK, key_BGxK, preferred_element_type=jnp.float32)
    logits_BGqhwM = logits_BGQx.reshape(rows, groups, count, -1, count, slots)
    logits_BGqhM = jnp.where(is_own_B1q1wM, logits_BGqhwM, 0.0).sum(axis=4)
    logits_bH1M = logits_BGqhM.swapaxes(1, 2).reshape(batch, heads, 1, slots)
    positions_bM, segments_bM = (jnp.repeat(x_BM, count, axis=0) for x_BM in cache.keys[2:])
    of_each = cache.keys._replace(positions_BM=positions_bM, segments_BM=segments_bM)
    weights_bH1M, _ = weigh(spec, logits_bH1M, new, of_each, terms)
    weights_BGqhM = weights_bH1M.astype(query_bHK.dtype).reshape(rows, count, groups, -1, slots).swapaxes(1, 2)
    weights_BGqhwM = jnp.where(is_own_B1q1wM, weights_BGqhM[..., None, :], 0.0)
    weights_BGQx = weights_BGqhwM.reshape(rows, groups, -1, count * slots)
    out_BGQK = jnp.einsum('BGQx,BGxK->BGQK', weights_BGQx, value_BGxK, preferred_element_type=jnp.float32)
    return out_BGQK.reshape(rows, groups, count, -1, width).swapaxes(1, 2).reshape(batch, 1, heads, width)


def read_keys(
    spec: CacheSpec, query_BnHK: Array, new: KeyCache, keys: KeyCache, terms: LogitTerms
) -> tuple[Float[Array, 'B n H K'], Float[Array, 'B H n']]:
    """Float32 outputs and log-sum-exp of the queries of tokens `new` over these keys alone."""
    batch, count, heads, width = query_BnHK.shape
    q_BnGhK = (query_BnHK * (1.0 / math.sqrt(width))).reshape(batch, count, spec.key_heads, -1, width)
    q_BGhnK = q_BnGhK.transpose(0, 2, 3, 1, 4)
    logits_BGhnM = jnp.einsum('BGhnK,BGMK->BGhnM', q_BGhnK, keys.key_BGMK, preferred_element_type=jnp.float32)
    logits_BHnM = logits_BGhnM.reshape(batch, heads, count, -1)
    weights_BHnM, lse_BHn = weigh(spec, logits_BHnM, new, keys, terms)
    weights_BGhnM = weights_BHnM.astype(query_BnHK.dtype).reshape(logits_BGhnM.shape)
    out_BGhnK = jnp.einsum('BGhnM,BGMK->BGhnK', weights_BGhnM, keys.value_BGMK, preferred_element_type=jnp.float32)
    return out_BGhnK.reshape(batch, heads, count, width).swapaxes(1, 2), lse_BHn


def weigh(
    spec: CacheSpec, logits_BHnM: Array, new: KeyCache, keys: KeyCache, terms: LogitTerms
) -> tuple[Float[Array, 'B H n M'], Float[Array, 'B H n']]:
    """Weights and log-sum-exp, from the products of queries and keys; positions and segments alone are read of both."""
    is_same_B1nM = new.segments_BM[:, None, :, None] == keys.segments_BM[:, None, None]
    is_same_B1nM = is_same_B1nM & (keys.segments_BM != 0)[:, None, None]
    allowed_BhnM = allowed_pairs(spec, new.positions_BM, keys.positions_BM) & is_same_B1nM
    if terms.relative is not None:
        logits_BHnM = logits_BHnM + relative_logits(terms.relative, new.positions_BM, keys.positions_BM)
    if terms.bias is not None:
        values = terms.bias(new.positions_BM[:, None, :, None], keys.positions_BM[:, None, None, :])
        logits_BHnM = logits_BHnM + values.astype(jnp.float32)
    return masked_softmax(logits_BHnM, allowed_BhnM)


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
