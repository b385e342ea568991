"""The cache of causal linear attention: phi(k) v and phi(k) summed over the keys, whose size does not grow."""

from typing import Any

from jax import Array

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.features.cache import SumsCache, decode_sums, init_sums
from efficient_attention.attention.linear.definition import ELU, Linear
from efficient_attention.attention.mechanism import of_kind


def init(spec: CacheSpec, batch: int, *_: Any) -> SumsCache:
    """The cache before any token, with sums of zero."""
    return init_sums(spec, batch, ELU)


def decode(spec: CacheSpec, cache: SumsCache, new: NewTokens, *_: Any) -> tuple[Array, SumsCache]:
    """Outputs [B, n, H, K] of the new tokens, and the cache that includes them."""
    return decode_sums(cache, new, of_kind(Linear, spec.mechanism).chunk)
