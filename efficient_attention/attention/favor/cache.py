"""The cache of causal attention through features: its sums over the keys, a constant state."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Int

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.favor.features import FeatureMap
from efficient_attention.attention.features.causal import FavorState, Tokens, attend_causal, init_state, keep_rows
from efficient_attention.attention.mechanism import of_kind


class SumsCache(NamedTuple):
    """The sums over the keys of the segment `segment_B` that was read last, and the features of queries and keys."""

    state: FavorState
    features: FeatureMap
    segment_B: Array


def init(spec: CacheSpec, batch: int, _: DTypeLike, rng: Array | None) -> SumsCache:
    """No sums yet, and the features that `rng` draws."""
    return init_sums(spec, batch, of_kind(FAVOR, spec.mechanism).feature_map(cast(Array, rng), spec.width))


def decode(spec: CacheSpec, cache: SumsCache, new: NewTokens, _: Any) -> tuple[Array, SumsCache]:
    """Outputs and the cache after; see `decode_sums`."""
    return decode_sums(cache, new, of_kind(FAVOR, spec.mechanism).chunk)


def init_sums(spec: CacheSpec, batch: int, features: FeatureMap) -> SumsCache:
    """No sums yet."""
    state = init_state(batch, spec.key_heads, features.count(spec.width), spec.width)
    return SumsCache(state, features, jnp.zeros(batch, jnp.int32))


def decode_sums(cache: SumsCache, new: NewTokens, chunk: int) -> tuple[Array, SumsCache]:
    """Outputs in the query's dtype of tokens that read the newest run of equal segments, and the sums after."""
    count = new.query.shape[1]
    extra = -count % min(count, chunk)  # a chunk that is not full would end with a run of its own
    query, key, value = (jnp.pad(x, ((0, 0), (0, extra), (0, 0), (0, 0))) for x in new[:3])
    segments = jnp.pad(new.segments, ((0, 0), (0, extra)))
    runs = fill_padding(segments, cache.segment_B)
    state = keep_rows(cache.state, runs[:, 0] == cache.segment_B)
    tokens = Tokens(query, key, value, segments != 0, runs)
    (out, _), state = attend_causal(tokens, state, cache.features, chunk)
    out = jnp.where((segments != 0)[..., None, None], out, 0.0).astype(query.dtype)
    return out[:, :count], SumsCache(state, cache.features, runs[:, -1])


def fill_padding(segments: Int[Array, 'B n'], before: Int[Array, 'B']) -> Int[Array, 'B n']:
    """The segments with the last one before it in the place of padding, so that padding ends no run."""
    latest = jax.lax.cummax(jnp.where(segments != 0, jnp.arange(segments.shape[1])[None], -1), axis=1)
    found = jnp.take_along_axis(segments, jnp.maximum(latest, 0), axis=1)
    return jnp.where(latest >= 0, found, before[:, None])
