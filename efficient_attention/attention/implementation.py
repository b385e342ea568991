"""Defines `Implementation`, the record of all functions that compute one mechanism:
dense weights, cost, fast form and decoding cache.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

from jax import Array
from jax.typing import DTypeLike

from efficient_attention.attention.cache_spec import CacheSpec, LogitTerms, NewTokens
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.mechanism import Mechanism, unsupported_error
from efficient_attention.attention.request import Request
from efficient_attention.attention.sequence_parallel.sequence_split import SequenceSplit

Result = tuple[Array, Array | None]


def raise_no_cache(spec: CacheSpec, *_: Any) -> NoReturn:
    """Raises a NotImplementedError that says that this mechanism has no decoding cache."""
    raise unsupported_error(spec.mechanism.name, 'cache')


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One mechanism's implementation: its class and all functions that compute it.

    A new mechanism is a folder that creates one `Implementation`, and a line in registry.py; docs/attention.md
    explains the steps.

    Args:
        kind: the mechanism's class, in definition.py.
        weights: in definition.py; returns the dense float32 weights [B, H, L, M] before dropout (after dropout if
            `capabilities.drops_slots`) and the log-sum-exp [B, H, L] or None. Rows sum to 1 or 0 unless the definition
            says otherwise.
        compute: the fast form, in fast_attention.py, or in definition.py if it is short. Returns the output [B, L, H,
            K] in the query's dtype and the log-sum-exp or None. Every option of the request is either computed or
            rejected with `mechanism.raise_unsupported`.
        zeroes_padding: whether `compute` gets the request before the content of padding tokens is zeroed, and the
            function that zeros it as a second argument. Otherwise padding is zeroed before `compute`.
        multiply_adds: in definition.py; returns the multiply-adds of the forward matrix products of one row, given its
            positions, heads and width.
        init_cache: in cache.py; returns the cache before any token, given the number of rows, a dtype and a key. A
            mechanism without `init_cache` and `decode` cannot be decoded.
        decode: in cache.py; returns the float outputs [B, n, H, K] of n >= 1 new tokens, and the cache that includes
            them. All logit terms are None unless the mechanism has logits.
        compute_shard: in sequence_parallel.py or fast_attention.py; like `compute`, for one device's shard of a
            request, inside `jax.shard_map`. Positions are positions in the whole rows. None if the mechanism cannot be
            sequence parallel.
        feature_map: returns the feature map for a mechanism, a PRNG key (None if nothing is sampled) and a head width.
            With a feature map, only sums over the keys of another sequence are cached. If the field is None or the
            function returns None, the keys are cached.
        compress_keys: in fast_attention.py; returns compressed keys and values, [B, R, G or H, K] each, that replace
            all keys of a request. It reads only keys, values, segments and learned arrays. Queries attend to them by
            plain softmax, so with fixed keys only the compressed keys are cached. None if the mechanism does not
            compress keys.
    """

    kind: type[Mechanism]
    weights: Callable[[Request], Result]
    compute: Callable[..., Result]
    multiply_adds: Callable[[Any, int, int, int], int]
    zeroes_padding: bool = False
    init_cache: Callable[[CacheSpec, int, DTypeLike, Array | None], Any] = raise_no_cache
    decode: Callable[[CacheSpec, Any, NewTokens, LogitTerms], tuple[Array, Any]] = raise_no_cache
    compute_shard: Callable[[Request, SequenceSplit], Result] | None = None
    feature_map: Callable[[Any, Any, int], FeatureMap | None] | None = None
    compress_keys: Callable[[Request], tuple[Array, Array]] | None = None
