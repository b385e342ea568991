"""The cache of causal linear attention: phi(k) v and phi(k) summed over the keys, a constant state."""

from typing import Any

from jax import Array

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.favor.cache import SumsCache, decode_sums, init_sums
from efficient_attention.attention.linear.definition import ELU, Linear
from efficient_attention.attention.mechanism import of_kind


def init(spec: CacheSpec, batch: int, *_: Any) -> SumsCache:
    """No sums yet."""
    return init_sums(spec, batch, ELU)


def decode(spec: CacheSpec, cache: SumsCache, new: NewTokens, _: Any) -> tuple[Array, SumsCache]:
    """Outputs of the new tokens and the sums after."""
    return decode_sums(cache, new, of_kind(Linear, spec.mechanism).chunk)
