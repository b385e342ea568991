"""Caches for decoding: with what one keeps of the tokens read so far, new ones attend as if all were read at once.

Each mechanism has a cache of its own kind, in the cache.py of its room.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from efficient_attention.attention.cache_spec import Bias, CacheSpec, LogitTerms, NewTokens
from efficient_attention.attention.checks import check_learned
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.mechanism import refuse
from efficient_attention.attention.registry import room_of
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import without_padding

__all__ = [
    'Cache',
    'CacheSpec',
    'NewTokens',
    'decode',
    'go_on_from',
    'init_cache',
    'rows_of',
    'take_rows',
    'with_hypotheses',
]

# Hypotheses of a row that share a cache. Each of them multiplies the keys of all: for more, copies take less time.
MOST_SHARED = 16

Cache = Any  # a tree of arrays, of the mechanism's own kind


@runtime_checkable
class SharesKeys(Protocol):
    """A cache that hypotheses of one row can share."""

    def with_hypotheses(self, count: int) -> 'Shared':
        """The function of this name, of this cache."""
        ...


@runtime_checkable
class Shared(Protocol):
    """A cache that hypotheses share."""

    def go_on_from(self, parents_BK: Array) -> 'Shared':
        """The function of this name, of this cache."""
        ...


def init_cache(spec: CacheSpec, batch: int, dtype: DTypeLike, rng: Array | None = None) -> Cache:
    """The cache before any token; `rng` is the key of mechanisms that draw something."""
    if spec.mechanism.draws.always and rng is None:
        raise ValueError(f'{spec.mechanism} draws at random and needs rng, one key')
    return room_of(spec.mechanism).init_cache(spec, batch, dtype, rng)


def decode(
    spec: CacheSpec,
    cache: Cache,
    new: NewTokens,
    *,
    bias: Bias | None = None,
    relative: Relative | None = None,
    additive: Float[Array, 'H K'] | None = None,
    learned: Mapping[str, Array] | None = None,
) -> tuple[Float[Array, 'B n H K'], Cache]:
    """Outputs of new tokens, which read themselves and those before them, and the cache that includes them.

    Args:
        spec: as the cache was made for.
        cache: of all tokens before.
        new: queries are scaled by 1 / sqrt(K) inside; keys and values as they are to be read later; padding is not
            kept and gets zeros. Mechanisms that keep sums read the newest run of equal segments alone.
        bias: added to the scaled logits: a function of positions of queries and keys, as in `attend`.
        relative: also added, by distance: the queries of the new tokens, and the table, as in `attend`.
        additive: the vector of additive scores, as in `attend`.
        learned: the arrays that the mechanism learns, as in `attend`.

    Outputs at positions from `max_length` on are NaN where the cache has no slots for them.
    """
    if not spec.mechanism.form.has_logits:
        lacks = {'additive bias': bias is not None, 'relative term': relative is not None}
        refuse(spec.mechanism.name, lacks | {'additive scores': additive is not None})
    check_learned(new.query, spec.mechanism, learned)
    positions, segments = new.positions.astype(jnp.int32), new.segments.astype(jnp.int32)
    query, key, value = (without_padding(x, segments) for x in (new.query, new.key, new.value))
    new = NewTokens(query, key, value, positions, segments)
    out, cache = room_of(spec.mechanism).decode(spec, cache, new, LogitTerms(bias, relative, additive, learned))
    return out.astype(new.query.dtype), cache


def with_hypotheses(cache: Cache, count: int) -> Cache:
    """The cache of `count` hypotheses for each row, side by side, all alike: [B, ...] to [B count, ...]."""
    if isinstance(cache, SharesKeys) and count <= MOST_SHARED:
        return cache.with_hypotheses(count)
    return take_rows(cache, jnp.repeat(jnp.arange(number_of_rows(cache)), count))


def go_on_from(cache: Cache, parents_BK: Array) -> Cache:
    """The cache of `with_hypotheses` where each of the K hypotheses of a row goes on from one of them, by its number.

    A cache that hypotheses share has a way of its own, by which its keys stay where they are.
    """
    if isinstance(cache, Shared):
        return cache.go_on_from(parents_BK)
    return take_rows(cache, rows_of(parents_BK))


def rows_of(parents_BK: Array) -> Array:
    """The rows [B K] of hypotheses that are named by their numbers among the K of a row."""
    rows, count = parents_BK.shape
    return (jnp.arange(rows, dtype=parents_BK.dtype)[:, None] * count + parents_BK).reshape(-1)


def number_of_rows(cache: Cache) -> int:
    """B of a cache, by the first of its arrays that rows have for themselves."""
    leaves = jax.tree.leaves(cache, is_leaf=lambda leaf: isinstance(leaf, FeatureMap))
    return len(next(leaf for leaf in leaves if not isinstance(leaf, FeatureMap)))


def take_rows(cache: Cache, rows_b: Array) -> Cache:
    """The cache of these rows in this order, any of them as often as it is named; all must be there.

    Every array of a cache has the rows as its first axis, but for those of a `FeatureMap`, which all rows share.
    """

    def take(leaf: Any) -> Any:
        # With a check of the numbers this took four times as long on a CPU.
        return leaf if isinstance(leaf, FeatureMap) else leaf.at[rows_b].get(mode='promise_in_bounds')

    return jax.tree.map(take, cache, is_leaf=lambda leaf: isinstance(leaf, FeatureMap))
