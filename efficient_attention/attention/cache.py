"""Caches for decoding: new tokens attend to all earlier tokens without recomputing the earlier tokens' keys and values.

Each mechanism has a cache type, in cache.py of its folder.
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
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.registry import get_implementation
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import without_padding

__all__ = [
    'Cache',
    'CacheSpec',
    'NewTokens',
    'decode',
    'reorder_beams',
    'init_cache',
    'beam_row_indices',
    'take_rows',
    'expand_to_beams',
]

# Largest number of beams per row that share one cache; with more beams, separate copies of the cache are faster.
# In a shared cache, the query of each beam is multiplied by the keys of all beams, so more beams cost more per beam.
MOST_SHARED = 16

Cache = Any  # a decoding cache: a tree of arrays, of a different type for each mechanism


@runtime_checkable
class SupportsBeams(Protocol):
    """A decoding cache that the beams of one row can share, instead of one copy per beam."""

    def expand_to_beams(self, count: int) -> 'BeamCache':
        """Returns a decoding cache that the `count` beams of each row share;
        the function `expand_to_beams` calls this method.
        """
        ...


@runtime_checkable
class BeamCache(Protocol):
    """A decoding cache that all beams of a row share."""

    def reorder_beams(self, parents_BK: Array) -> 'BeamCache':
        """Returns the decoding cache in which each beam continues its parent beam;
        the function `reorder_beams` calls this method.
        """
        ...


def init_cache(spec: CacheSpec, batch: int, dtype: DTypeLike, rng: Array | None = None) -> Cache:
    """Returns the empty decoding cache, before any token; mechanisms that sample at every call require `rng`."""
    if spec.mechanism.randomness.always and rng is None:
        raise ValueError(f'{spec.mechanism} samples at random and needs rng, one key')
    return get_implementation(spec.mechanism).init_cache(spec, batch, dtype, rng)


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
    """Lets new tokens attend to themselves and to all earlier tokens; returns their attention outputs and the updated
    decoding cache.

    Args:
        spec: the spec that the cache was created for.
        cache: of all earlier tokens.
        new: queries are scaled by 1 / sqrt(K) inside. Keys and values are cached as given. Padding is not cached and
            gives zeros. Mechanisms that keep sums read only the latest run of equal segments.
        bias: added to the scaled logits: a function of query and key positions, as in `attend`.
        relative: also added, by distance: the queries of the new tokens, and the table, as in `attend`.
        additive: the vector of additive scores, as in `attend`.
        learned: the arrays that the mechanism learns, as in `attend`.

    Outputs at positions from `max_length` on are NaN if the cache has no slots for them.
    """
    if not spec.mechanism.capabilities.has_logits:
        lacks = {'additive bias': bias is not None, 'relative term': relative is not None}
        raise_unsupported(spec.mechanism.name, lacks | {'additive scores': additive is not None})
    check_learned(new.query, spec.mechanism, learned)
    positions, segments = new.positions.astype(jnp.int32), new.segments.astype(jnp.int32)
    query, key, value = (without_padding(x, segments) for x in (new.query, new.key, new.value))
    new = NewTokens(query, key, value, positions, segments)
    out, cache = get_implementation(spec.mechanism).decode(
        spec, cache, new, LogitTerms(bias, relative, additive, learned)
    )
    return out.astype(new.query.dtype), cache


def expand_to_beams(cache: Cache, count: int) -> Cache:
    """Returns the decoding cache of `count` equal beams per row; the beams of a row are neighbours: [B, ...] becomes [B
    * count, ...].
    """
    if isinstance(cache, SupportsBeams) and count <= MOST_SHARED:
        return cache.expand_to_beams(count)
    return take_rows(cache, jnp.repeat(jnp.arange(cache_batch_size(cache)), count))


def reorder_beams(cache: Cache, parents_BK: Array) -> Cache:
    """Returns the decoding cache after each of a row's K beams continues the parent beam whose number is in
    `parents_BK`.

    A cache that beams share has a method for this, which does not move its keys.
    """
    if isinstance(cache, BeamCache):
        return cache.reorder_beams(parents_BK)
    return take_rows(cache, beam_row_indices(parents_BK))


def beam_row_indices(parents_BK: Array) -> Array:
    """Converts beam numbers within each row, [B, K], to row indices [B K] in the batch of all beams."""
    rows, count = parents_BK.shape
    return (jnp.arange(rows, dtype=parents_BK.dtype)[:, None] * count + parents_BK).reshape(-1)


def cache_batch_size(cache: Cache) -> int:
    """Returns the number of batch rows in a decoding cache."""
    leaves = jax.tree.leaves(cache, is_leaf=lambda leaf: isinstance(leaf, FeatureMap))
    return len(next(leaf for leaf in leaves if not isinstance(leaf, FeatureMap)))


def take_rows(cache: Cache, rows_b: Array) -> Cache:
    """Returns the decoding cache with only the batch rows of these indices, in this order;
    rows may repeat, and all indices must exist.

    The first axis of every array of a cache is the rows. Arrays of a `FeatureMap` are the exception: all rows share
    them.
    """

    def take(leaf: Any) -> Any:
        # 'promise_in_bounds' skips the check of indices, which makes this gather four times as fast on a CPU.
        return leaf if isinstance(leaf, FeatureMap) else leaf.at[rows_b].get(mode='promise_in_bounds')

    return jax.tree.map(take, cache, is_leaf=lambda leaf: isinstance(leaf, FeatureMap))
