"""The decoding cache of causal FAVOR attention: sums over the keys' random features,
and the random projection of the feature map.
"""

from typing import Any, cast

from jax import Array
from jax.typing import DTypeLike

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.features.cache import SumsCache, decode_sums, init_sums
from efficient_attention.attention.mechanism import ensure_kind


def init(spec: CacheSpec, batch: int, _: DTypeLike, rng: Array | None) -> SumsCache:
    """Returns FAVOR's empty decoding cache: sums of zero, and a feature map whose random projection is sampled with
    `rng`.
    """
    return init_sums(spec, batch, ensure_kind(FAVOR, spec.mechanism).feature_map(cast(Array, rng), spec.width))


def decode(spec: CacheSpec, cache: SumsCache, new: NewTokens, *_: Any) -> tuple[Array, SumsCache]:
    """Returns FAVOR's attention outputs [B, n, H, K] of the new tokens, and the updated decoding cache."""
    return decode_sums(cache, new, ensure_kind(FAVOR, spec.mechanism).chunk)
