"""The decoding cache of causal FAVOR: sums over the features of its keys, and the random rows of the feature map."""

from typing import Any, cast

from jax import Array
from jax.typing import DTypeLike

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.features.cache import SumsCache, decode_sums, init_sums
from efficient_attention.attention.mechanism import ensure_kind


def init(spec: CacheSpec, batch: int, _: DTypeLike, rng: Array | None) -> SumsCache:
    """Returns the cache before any token: sums of zero, and the features that are sampled with `rng`."""
    return init_sums(spec, batch, ensure_kind(FAVOR, spec.mechanism).feature_map(cast(Array, rng), spec.width))


def decode(spec: CacheSpec, cache: SumsCache, new: NewTokens, *_: Any) -> tuple[Array, SumsCache]:
    """Returns outputs [B, n, H, K] of the new tokens, and the cache that includes them."""
    return decode_sums(cache, new, ensure_kind(FAVOR, spec.mechanism).chunk)
