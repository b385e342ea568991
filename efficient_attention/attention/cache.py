"""What must be kept of the tokens read so far, so that new ones attend as if all had been read at once?

Causal softmax attention keeps keys and values in slots, for as long as the pattern lets a later query read them:
- where no key is read from farther than a distance r (`causal & window(r)`, `causal & block(r + 1)`), a ring of r + 1
  slots, whatever the length;
- otherwise slots that are handed on: for a largest length the host computes the last query that reads each key, and a
  key takes over the slot of one that nobody reads any more. `sparse_fixed(128, 8)` keeps a block and the summary
  columns, `causal` and `sparse_strided` everything.

Causal FAVOR keeps its sums: a constant state. LSH is refused: which earlier keys share a chunk with a query depends on
the hashes of all tokens of the row, later ones too, so no token-by-token result can equal the parallel one.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.favor.chunks import FavorState, attend_causal, init_state, keep_rows
from efficient_attention.attention.favor.features import draw_features
from efficient_attention.attention.mechanism import FAVOR, LSH, Mechanism
from efficient_attention.attention.merge import merge
from efficient_attention.attention.patterns.pattern import Pattern, head_patterns
from efficient_attention.attention.softmax import dense
from efficient_attention.attention.softmax.cache_slots import Slots, reach, slots_of
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """What is decoded: static, and the same in all calls for one state.

    Args:
        mechanism: causal, of one layer.
        heads: H.
        key_heads: G, a divisor of H.
        width: K.
        max_length: positions are below it, unless the cache is a ring or FAVOR's; patterns that depend on the number of
            keys take it for that, so they equal the parallel result over `max_length` tokens.

    Raises:
        InputError: the mechanism cannot be decoded token by token.
    """

    mechanism: Mechanism
    heads: int
    key_heads: int
    width: int
    max_length: int

    def __post_init__(self) -> None:
        if isinstance(self.mechanism, LSH):
            raise InputError(
                'lsh attention cannot go on token by token: which keys a query meets depends on the tokens after it'
            )
        mechanism = self.mechanism
        if not (mechanism.causal if isinstance(mechanism, FAVOR) else reach(self.pattern).ahead == 0):
            raise InputError(f'{mechanism} is not causal; only causal attention can go on token by token')
        if self.max_length < 1:
            raise InputError(f'max_length is {self.max_length}; it must be at least 1')

    @property
    def pattern(self) -> Pattern:
        """The pattern of softmax attention, for `max_length` keys."""
        return dense.softmax_pattern(self.mechanism).for_keys(self.max_length)

    @property
    def slots(self) -> Slots:
        """Where softmax attention keeps which key."""
        return slots_of(self.pattern, self.heads, self.max_length)


class KeyCache(NamedTuple):
    """Keys and values [B, G, M, K] in M slots, their positions and segments int32 [B, M]; segment 0 = an empty slot.

    Slots stand behind heads, as matrix products want them: otherwise each token would transpose the whole cache.
    """

    key: Array
    value: Array
    positions: Array
    segments: Array


class FavorCache(NamedTuple):
    """FAVOR's sums over the keys of the segment `segment_B` that was read last, and its features [R, K]."""

    state: FavorState
    projection_RK: Array
    segment_B: Array


Cache = KeyCache | FavorCache


def init_cache(spec: CacheSpec, batch: int, dtype: DTypeLike, rng: Array | None = None) -> Cache:
    """The cache before any token; `rng` is the key from which FAVOR draws its features."""
    if isinstance(spec.mechanism, FAVOR):
        mechanism = spec.mechanism
        if rng is None:
            raise ValueError(f'{mechanism} draws at random and needs rng, one key')
        projection_RK = draw_features(rng, mechanism.features, spec.width, mechanism.orthogonal)
        state = init_state(batch, spec.key_heads, mechanism.features, spec.width)
        return FavorCache(state, projection_RK, jnp.zeros(batch, jnp.int32))
    slots = spec.slots.count
    keys, numbers = jnp.zeros((batch, spec.key_heads, slots, spec.width), dtype), jnp.zeros((batch, slots), jnp.int32)
    return KeyCache(keys, keys, numbers, numbers)


def decode(
    spec: CacheSpec,
    cache: Cache,
    query: Float[Array, 'B n H K'],
    key: Float[Array, 'B n G K'],
    value: Float[Array, 'B n G K'],
    positions: Int[Array, 'B n'],
    segments: Int[Array, 'B n'],
    *,
    bias: Callable[[Any, Any], Any] | None = None,
) -> tuple[Float[Array, 'B n H K'], Cache]:
    """Outputs of n >= 1 new tokens, which read themselves and those before them, and the cache that includes them.

    Args:
        spec: as the cache was made for.
        cache: of all tokens before.
        query: scaled by 1 / sqrt(K) inside.
        key: of the new tokens, as they are to be read later.
        value: likewise.
        positions: what the pattern sees: places in the row, rising within and between calls but for padding.
        segments: 0 = padding, which is not kept and gets zeros. FAVOR reads the newest run of equal segments alone.
        bias: added to the scaled logits: a function of positions of queries and keys, as in `attend`.

    Outputs at positions from `max_length` on are NaN where the cache has no slots for them.
    """
    positions, segments = positions.astype(jnp.int32), segments.astype(jnp.int32)
    if isinstance(cache, FavorCache):
        if bias is not None:
            raise NotImplementedError('FAVOR has no additive bias')
        return decode_favor(spec, cache, query, key, value, segments)
    new = KeyCache(key.swapaxes(1, 2), value.swapaxes(1, 2), positions, segments)
    out, cache = decode_keys(spec, cache, query, new, bias)
    out = out.astype(query.dtype)
    if not spec.slots.is_ring:
        is_beyond = (positions >= spec.max_length) & (segments != 0)
        out = jnp.where(is_beyond[..., None, None], jnp.nan, out)
    return out, cache


def decode_keys(
    spec: CacheSpec, cache: KeyCache, query: Array, new: KeyCache, bias: Callable[[Any, Any], Any] | None
) -> tuple[Array, KeyCache]:
    """As `decode`, float32 outputs, for softmax attention."""
    if query.shape[1] == 1:
        # Written before it is read, and that once, the cache of a loop over tokens is changed in place, not copied.
        cache = jax.lax.optimization_barrier(write(spec.slots, cache, new))
        return read_keys(spec, query, new, cache, bias)[0], cache
    parts = [read_keys(spec, query, new, keys, bias) for keys in (cache, new)]
    return merge(parts)[0], write(spec.slots, cache, new)


def read_keys(
    spec: CacheSpec, query: Array, new: KeyCache, keys: KeyCache, bias: Callable[[Any, Any], Any] | None
) -> tuple[Float[Array, 'B n H K'], Float[Array, 'B H n']]:
    """Float32 outputs and log-sum-exp of the queries of tokens `new` over these keys alone."""
    batch, count, heads, width = query.shape
    q_BnGhK = (query * (1.0 / math.sqrt(width))).reshape(batch, count, spec.key_heads, -1, width)
    q_BGhnK = q_BnGhK.transpose(0, 2, 3, 1, 4)
    logits = jnp.einsum('BGhnK,BGMK->BGhnM', q_BGhnK, keys.key, preferred_element_type=jnp.float32)
    is_same = (new.segments[:, None, :, None] == keys.segments[:, None, None]) & (keys.segments != 0)[:, None, None]
    allowed = allowed_pairs(spec, new.positions, keys.positions) & is_same
    logits_BHnM = logits.reshape(batch, heads, count, -1)
    if bias is not None:
        values = bias(new.positions[:, None, :, None], keys.positions[:, None, None, :])
        logits_BHnM = logits_BHnM + values.astype(jnp.float32)
    weights_BHnM, lse_BHn = dense.masked_softmax(logits_BHnM, allowed)
    weights = weights_BHnM.astype(query.dtype).reshape(logits.shape)
    out = jnp.einsum('BGhnM,BGMK->BGhnK', weights, keys.value, preferred_element_type=jnp.float32)
    return out.reshape(batch, heads, count, width).swapaxes(1, 2), lse_BHn


def allowed_pairs(
    spec: CacheSpec, query_positions: Int[Array, 'B n'], key_positions: Int[Array, 'B M']
) -> Bool[Array, 'B h n M']:
    """Which query the pattern lets read which key; h is 1 where heads do not differ."""
    patterns = head_patterns(spec.pattern, spec.heads)
    pairs = query_positions[:, :, None], key_positions[:, None, :]
    return jnp.stack([pattern(*pairs) for pattern in patterns], axis=1)


def write(slots: Slots, cache: KeyCache, new: KeyCache) -> KeyCache:
    """The cache with the new keys in their slots, each with the newest of those that take it."""
    last_B1 = jnp.where(new.segments != 0, new.positions, -1).max(axis=1, keepdims=True)
    is_kept = (new.segments != 0) & (slots.next_owner(new.positions) > last_B1)
    places = jnp.where(is_kept, slots.slot(new.positions), slots.count)  # one beyond the last slot is dropped
    put = jax.vmap(lambda old, place, fresh: old.at[..., place, :].set(fresh.astype(old.dtype), mode='drop'))
    numbers = (
        put(old[..., None], places, fresh[..., None])[..., 0] for old, fresh in zip(cache[2:], new[2:], strict=True)
    )
    return KeyCache(put(cache.key, places, new.key), put(cache.value, places, new.value), *numbers)


def decode_favor(
    spec: CacheSpec, cache: FavorCache, query: Array, key: Array, value: Array, segments: Array
) -> tuple[Array, FavorCache]:
    """As `decode`, for FAVOR."""
    assert isinstance(spec.mechanism, FAVOR)
    new = query.shape[1]
    extra = -new % min(new, spec.mechanism.chunk)  # a chunk that is not full would end with a run of its own
    query, key, value = (jnp.pad(x, ((0, 0), (0, extra), (0, 0), (0, 0))) for x in (query, key, value))
    segments = jnp.pad(segments, ((0, 0), (0, extra)))
    runs = fill_padding(segments, cache.segment_B)
    state = keep_rows(cache.state, runs[:, 0] == cache.segment_B)
    (out, _), state = attend_causal(
        query, key, value, state, cache.projection_RK, spec.mechanism, valid_BL=segments != 0, segments_BL=runs
    )
    out = jnp.where((segments != 0)[..., None, None], out, 0.0).astype(query.dtype)
    return out[:, :new], FavorCache(state, cache.projection_RK, runs[:, -1])


def fill_padding(segments: Int[Array, 'B n'], before: Int[Array, 'B']) -> Int[Array, 'B n']:
    """The segments with the last one before it in the place of padding, so that padding ends no run."""
    latest = jax.lax.cummax(jnp.where(segments != 0, jnp.arange(segments.shape[1])[None], -1), axis=1)
    found = jnp.take_along_axis(segments, jnp.maximum(latest, 0), axis=1)
    return jnp.where(latest >= 0, found, before[:, None])
