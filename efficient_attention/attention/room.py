"""A room: one mechanism's implementation, in a folder: definition (class, dense weights, cost), fast form, cache."""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

from jax import Array
from jax.typing import DTypeLike

from efficient_attention.attention.cache_spec import CacheSpec, LogitTerms, NewTokens
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.mechanism import Mechanism, lack
from efficient_attention.attention.request import Request
from efficient_attention.attention.split_tokens.split import Split

Result = tuple[Array, Array | None]


def no_cache(spec: CacheSpec, *_: Any) -> NoReturn:
    """Raises NotImplementedError that names the mechanism."""
    raise lack(spec.mechanism.name, 'cache')


@dataclasses.dataclass(frozen=True)
class Room:
    """A mechanism with all that computes it.

    A new mechanism is a folder that makes one of these, and a line in registry.py; docs/attention.md goes through it.

    Args:
        kind: its class, of definition.py.
        weights: definition.py; the dense weights [B, H, L, M] in float32 before dropout (after it where
            `form.drops_slots` is True), rows summing to 1 or 0 unless its definition says otherwise, and the
            log-sum-exp [B, H, L] where there is one.
        serve: the fast form, of serve.py, or of definition.py where it is short; output [B, L, H, K] in the query's
            dtype and log-sum-exp. Whatever the request asks for is honoured, or refused with `mechanism.lack`.
        multiply_adds: definition.py; of one row of so many positions, heads and width, in matrix products, forward.
        init_cache: cache.py; what is kept before any token, given the number of rows, a dtype and a key. Without it and
            `decode` the mechanism cannot be decoded.
        decode: cache.py; float outputs [B, n, H, K] of n >= 1 new tokens, and the cache that includes them. All
            terms are None unless the mechanism has logits.
        serve_share: split_tokens.py or serve.py; as `serve`, of the share of a request that one device has, inside
            `jax.shard_map`. Positions are those of the whole rows. None where rows cannot be split.
        feature_map: from a mechanism, a PRNG key (None where nothing is drawn) and a head's width; with the map only
            sums over the keys of another sequence are cached. None, or a function that gives None, where keys are.
        slots: serve.py; the keys and values, [B, R, G or H, K] each, that stand for all keys of a request, of which
            only keys, values, segments and learned arrays are read. Queries meet them in a plain softmax, so that
            they are all that is read of keys that stay the same for all queries. None where there are no such.
    """

    kind: type[Mechanism]
    weights: Callable[[Request], Result]
    serve: Callable[[Request], Result]
    multiply_adds: Callable[[Any, int, int, int], int]
    init_cache: Callable[[CacheSpec, int, DTypeLike, Array | None], Any] = no_cache
    decode: Callable[[CacheSpec, Any, NewTokens, LogitTerms], tuple[Array, Any]] = no_cache
    serve_share: Callable[[Request, Split], Result] | None = None
    feature_map: Callable[[Any, Any, int], FeatureMap | None] | None = None
    slots: Callable[[Request], tuple[Array, Array]] | None = None
