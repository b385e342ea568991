"""Caches cross-attention keys and values, which are computed once per source text and then read at every decoding step.

Several neighbouring batch rows of queries, such as the beams of one source, may share one batch row of keys without a
copy.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from efficient_attention.attention.attend import attend_with_options
from efficient_attention.attention.features.cross_attention_sums import (
    CrossAttentionSums,
    read_cross_sums,
    sum_cross_keys,
)
from efficient_attention.attention.mechanism import Mechanism, raise_unsupported
from efficient_attention.attention.registry import get_implementation
from efficient_attention.attention.request import (
    CallOptions,
    QueryKeyPair,
    Request,
    with_query_padding_zeroed,
    without_padding,
)
from efficient_attention.attention.single_text_rows import check_single_text_rows, is_single_segment_row
from efficient_attention.attention.softmax.definition import Softmax

NO_OPTIONS = CallOptions()


class KeySequence(NamedTuple):
    """The keys and values [B, M, G, K] of a source sequence, with int segments [B, M] and int positions [B, M];
    positions None means 0, 1, ...

    Segment 0 is padding.
    """

    key: Array
    value: Array
    segments: Array
    positions: Array | None = None


class CompressedKeys(NamedTuple):
    """Compressed keys and values that replace all keys of a row's source text;
    `text_B` is the segment number of that text.
    """

    key_BRGK: Array
    value_BRGK: Array
    text_B: Array
    is_one_B: Array  # whether the batch row holds only one text


class CrossAttentionKeys(NamedTuple):
    """Cached source keys and values with the head axis first, as matrix products read them; also the compressed keys,
    or None if the mechanism does not compress keys.
    """

    key_BGMK: Array
    value_BGMK: Array
    segments_BM: Array
    positions_BM: Array | None
    slots: CompressedKeys | None = None


class NewQueries(NamedTuple):
    """Queries [n B, L, H, K] that read the cached source keys of B batch rows,
    with int segments and positions [n B, L].

    `centres_BLH` [n B, L, H] is for mechanisms that require centres.
    """

    query: Array
    segments: Array
    positions: Array
    centres_BLH: Array | None = None


def cache_cross_keys(
    mechanism: Mechanism, keys: KeySequence, rng: Array | None = None, learned: Mapping[str, Array] | None = None
) -> CrossAttentionKeys | CrossAttentionSums:
    """Returns the cache of a source sequence for cross-attention: sums over its keys if the mechanism has a feature
    map, else its keys and values.

    The cached keys come with compressed keys if the mechanism compresses keys. Sums and compressed keys are for one
    segment per row; a row with several segments gives NaN. `rng` is for mechanisms that sample, `learned` has the
    mechanism's learned arrays.
    """
    if mechanism.randomness.always and rng is None:
        raise ValueError(f'{mechanism} samples at random and needs rng, one key')
    key, value = (without_padding(x, keys.segments) for x in (keys.key, keys.value))
    keys = keys._replace(key=key, value=value)
    make = get_implementation(mechanism).feature_map
    feature_map = None if make is None else make(mechanism, rng, keys.key.shape[3])
    if feature_map is not None:
        return sum_cross_keys(keys.key, keys.value, keys.segments, feature_map)
    # The barrier prevents XLA from swapping the axes again at every step of a loop that reads the keys.
    key_BGMK, value_BGMK = jax.lax.optimization_barrier((keys.key.swapaxes(1, 2), keys.value.swapaxes(1, 2)))
    return CrossAttentionKeys(
        key_BGMK, value_BGMK, keys.segments, keys.positions, compress_keys(mechanism, keys, learned)
    )


def compress_keys(
    mechanism: Mechanism, keys: KeySequence, learned: Mapping[str, Array] | None
) -> CompressedKeys | None:
    """Returns the compressed keys and values of a source sequence; None if the mechanism does not compress keys."""
    make, both, unknown = (
        get_implementation(mechanism).compress_keys,
        QueryKeyPair(keys.segments, keys.segments),
        QueryKeyPair(None, None),
    )
    if make is None:
        return None
    request = Request(keys.key, keys.key, keys.value, mechanism, both, unknown, None, learned=learned)
    check_single_text_rows(request)
    return CompressedKeys(*make(request), keys.segments.max(axis=1), is_single_segment_row(keys.segments))


def attend_cross_cached(
    mechanism: Mechanism,
    fixed: CrossAttentionKeys | CrossAttentionSums,
    new: NewQueries,
    options: CallOptions = NO_OPTIONS,
) -> tuple[Array, Array | None]:
    """Returns cross-attention of queries over the cached source keys of their segment, and the log-sum-exp or None.

    Segments, positions and centres come from `new` and `fixed`, not from `options`. If keys are sampled in training
    (`rng`, `return_lse`), each row of keys must have one row of queries.
    """
    rows = len(fixed.segment_B if isinstance(fixed, CrossAttentionSums) else fixed.segments_BM)
    query, segments, positions, centres = (None if x is None else merge_beam_rows(x, rows) for x in new)
    assert query is not None and segments is not None
    if isinstance(fixed, CrossAttentionSums):
        return read_cross_sums(fixed, query, segments).reshape(new.query.shape), None
    if fixed.slots is not None:
        return attend_compressed_keys(mechanism, fixed.slots, query, segments, options).reshape(new.query.shape), None
    options = dataclasses.replace(options, query_segments=segments, key_segments=fixed.segments_BM, centres=centres)
    if mechanism.requirements.positions:
        options = dataclasses.replace(options, query_positions=positions, key_positions=fixed.positions_BM)
    key, value = fixed.key_BGMK.swapaxes(1, 2), fixed.value_BGMK.swapaxes(1, 2)
    # Only padding queries are zeroed here, because `cache_cross_keys` has already zeroed the padding keys.
    out, lse = attend_with_options(query, key, value, mechanism, options, with_query_padding_zeroed)
    return out.reshape(new.query.shape), lse


def attend_compressed_keys(
    mechanism: Mechanism, slots: CompressedKeys, query_BLHK: Array, segments_BL: Array, options: CallOptions
) -> Float[Array, 'B L H K']:
    """Returns softmax attention over compressed keys, with dropout; zeros for padding and for queries whose segment is
    not the segment of the source text.
    """
    raise_unsupported(
        mechanism.name, {'dropout on weights': options.dropout_rate > 0.0 and not mechanism.capabilities.drops_slots}
    )
    dropout = CallOptions(dropout_rate=options.dropout_rate, dropout_rng=options.dropout_rng)
    out_BLHK, _ = attend_with_options(query_BLHK, slots.key_BRGK, slots.value_BRGK, Softmax(), dropout)
    is_read_BL = (segments_BL == slots.text_B[:, None]) & (segments_BL != 0)
    out_BLHK = jnp.where(is_read_BL[..., None, None], out_BLHK, jnp.zeros_like(out_BLHK))
    return jnp.where(slots.is_one_B[:, None, None, None], out_BLHK, jnp.nan)


def merge_beam_rows(x: Shaped[Array, '_ L *rest'], rows: int) -> Shaped[Array, 'B _ *rest']:
    """Returns `x` [n B, L, ...] as [B, n L, ...]: the queries of the n rows that share one row
    of source keys become one row.
    """
    return x.reshape(rows, -1, *x.shape[2:])
