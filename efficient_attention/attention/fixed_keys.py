"""Keys and values that stay the same for all queries: what decoding keeps of another sequence, computed once.

The rows of queries may be a multiple of the rows of keys: neighbouring rows, such as the hypotheses of a beam search
about one source, then read one row of keys, of which there is no copy.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from efficient_attention.attention.attend import attend_with
from efficient_attention.attention.features.fixed_sums import FixedSums, read_fixed_sums, sum_fixed
from efficient_attention.attention.mechanism import Mechanism, refuse
from efficient_attention.attention.registry import room_of
from efficient_attention.attention.request import (
    CallOptions,
    Request,
    Sides,
    with_query_padding_zeroed,
    without_padding,
)
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.whole_rows import check_whole_rows, is_one_text

NO_OPTIONS = CallOptions()


class KeySequence(NamedTuple):
    """Keys and values [B, M, G, K] with the segment of each, int [B, M], and its position, 0, 1, ... where None.

    Segment 0 is padding.
    """

    key: Array
    value: Array
    segments: Array
    positions: Array | None = None


class Slots(NamedTuple):
    """What stands for all keys of a row, the text of segment `text_B`: `Room.slots`."""

    key_BRGK: Array
    value_BRGK: Array
    text_B: Array
    is_one_B: Array  # whether the row holds no other text


class FixedKeys(NamedTuple):
    """A `KeySequence` with keys behind heads, as products want them, and the slots that are read in their place."""

    key_BGMK: Array
    value_BGMK: Array
    segments_BM: Array
    positions_BM: Array | None
    slots: Slots | None = None


class NewQueries(NamedTuple):
    """Queries [n B, L, H, K], for keys of B rows, with their segments and positions, int [n B, L].

    And where they read, [n B, L, H], for a mechanism that needs it.
    """

    query: Array
    segments: Array
    positions: Array
    centres_BLH: Array | None = None


def fix_keys(
    mechanism: Mechanism, keys: KeySequence, rng: Array | None = None, learned: Mapping[str, Array] | None = None
) -> FixedKeys | FixedSums:
    """What is kept of the keys: sums over them, where the mechanism has some, else they themselves, and their slots.

    Sums and slots are those of one segment a row; a row that packs several then gives NaN. `rng` is the key of
    mechanisms that draw something, `learned` what a mechanism learns.
    """
    if mechanism.draws.always and rng is None:
        raise ValueError(f'{mechanism} draws at random and needs rng, one key')
    key, value = (without_padding(x, keys.segments) for x in (keys.key, keys.value))
    keys = keys._replace(key=key, value=value)
    make = room_of(mechanism).feature_map
    feature_map = None if make is None else make(mechanism, rng, keys.key.shape[3])
    if feature_map is not None:
        return sum_fixed(keys.key, keys.value, keys.segments, feature_map)
    # Without the barrier XLA swaps the axes at every step of a loop that reads the keys.
    key_BGMK, value_BGMK = jax.lax.optimization_barrier((keys.key.swapaxes(1, 2), keys.value.swapaxes(1, 2)))
    return FixedKeys(key_BGMK, value_BGMK, keys.segments, keys.positions, slots_of(mechanism, keys, learned))


def slots_of(mechanism: Mechanism, keys: KeySequence, learned: Mapping[str, Array] | None) -> Slots | None:
    """The slots of keys; None where the mechanism has none."""
    make, both, unknown = room_of(mechanism).slots, Sides(keys.segments, keys.segments), Sides(None, None)
    if make is None:
        return None
    request = Request(keys.key, keys.key, keys.value, mechanism, both, unknown, None, learned=learned)
    check_whole_rows(request)
    return Slots(*make(request), keys.segments.max(axis=1), is_one_text(keys.segments))


def attend_fixed(
    mechanism: Mechanism,
    fixed: FixedKeys | FixedSums,
    new: NewQueries,
    options: CallOptions = NO_OPTIONS,
) -> tuple[Array, Array | None]:
    """The output of `attend` for queries that read the keys, within segments, and the log-sum-exp if it is asked for.

    Segments, positions and centres come from `new` and `fixed`, and not from `options`. Keys that are drawn in training
    (`rng`, `return_lse`) need a row of queries for each row of keys.
    """
    rows = len(fixed.segment_B if isinstance(fixed, FixedSums) else fixed.segments_BM)
    query, segments, positions, centres = (None if x is None else side_by_side(x, rows) for x in new)
    assert query is not None and segments is not None
    if isinstance(fixed, FixedSums):
        return read_fixed_sums(fixed, query, segments).reshape(new.query.shape), None
    if fixed.slots is not None:
        return read_slots(mechanism, fixed.slots, query, segments, options).reshape(new.query.shape), None
    options = dataclasses.replace(options, query_segments=segments, key_segments=fixed.segments_BM, centres=centres)
    if mechanism.needs.positions:
        options = dataclasses.replace(options, query_positions=positions, key_positions=fixed.positions_BM)
    key, value = fixed.key_BGMK.swapaxes(1, 2), fixed.value_BGMK.swapaxes(1, 2)
    # The padding of keys is not zeroed at each decoding step: `fix_keys` has done it once.
    out, lse = attend_with(query, key, value, mechanism, options, with_query_padding_zeroed)
    return out.reshape(new.query.shape), lse


def read_slots(
    mechanism: Mechanism, slots: Slots, query_BLHK: Array, segments_BL: Array, options: CallOptions
) -> Float[Array, 'B L H K']:
    """The softmax over the slots, with dropout; zeros for queries of another segment, and for padding."""
    refuse(mechanism.name, {'dropout on weights': options.dropout_rate > 0.0 and not mechanism.form.drops_slots})
    dropout = CallOptions(dropout_rate=options.dropout_rate, dropout_rng=options.dropout_rng)
    out_BLHK, _ = attend_with(query_BLHK, slots.key_BRGK, slots.value_BRGK, Softmax(), dropout)
    is_read_BL = (segments_BL == slots.text_B[:, None]) & (segments_BL != 0)
    out_BLHK = jnp.where(is_read_BL[..., None, None], out_BLHK, jnp.zeros_like(out_BLHK))
    return jnp.where(slots.is_one_B[:, None, None, None], out_BLHK, jnp.nan)


def side_by_side(x: Shaped[Array, '_ L *rest'], rows: int) -> Shaped[Array, 'B _ *rest']:
    """The queries of neighbouring rows, as many as share a row of keys, in one row."""
    return x.reshape(rows, -1, *x.shape[2:])
