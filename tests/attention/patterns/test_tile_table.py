"""Tests tile tables: kept tiles cover the pattern, whole tiles are fully allowed, and no [L, L] array is made."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attention.attention import patterns
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import Causal, Full, Pattern, Strided, Window
from efficient_attention.attention.patterns.tile_table import (
    TileTable,
    full_tile_table,
    order_by_residue,
    position_ranges,
    split_into_disjoint_patterns,
    tile_table,
)
from tests.attention.random_patterns import PATTERNS

STEADY = settings(max_examples=300, deadline=None, derandomize=True)  # The examples are the same in every run.
LENGTHS = st.integers(1, 70)

# Maximal share of kept tiles that are empty, at 1,000 positions in tiles of 16; measured, rounded up. It is above 0
# where a residue's positions do not fill whole tiles: a tile that crosses into the next residue spans all positions.
EMPTY = {
    'full': 0,
    'causal': 0,
    'window(40)': 0,
    'window(40, dilation=4)': 0.27,
    'causal & window(40)': 0,
    'full - window(40)': 0,
    'causal & block(48, back=1)': 0,
    'strided(32)': 0,
    'causal & strided(32)': 0.33,
    'summary(64, 4)': 0,
    'global_tokens(2, last=3)': 0,
    'random_tiles(3, 24)': 0,
    'longformer(40, 2)': 0,
    'bigbird(16, 2)': 0,
    'causal & bigbird(16, 2)': 0,
    'sparse_fixed(64, 4)': 0,
    'sparse_strided(32)': 0.17,
    'sparse_strided(64)': 0.06,
}


def allowed_tiles(pattern: Pattern, queries: np.ndarray, keys: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns which tiles hold an allowed pair, and which hold no forbidden pair, by looking at each pair."""
    allowed = np.broadcast_to(pattern(queries[:, None], keys[None]), (len(queries), len(keys)))
    rows, columns = np.arange(0, len(queries), size), np.arange(0, len(keys), size)
    some, every = (
        reduce.reduceat(reduce.reduceat(allowed, rows, axis=0), columns, axis=1)
        for reduce in (np.logical_or, np.logical_and)
    )
    return some, every


def as_dense(table: TileTable) -> tuple[np.ndarray, np.ndarray]:
    """Returns two boolean arrays [query tiles, key tiles]: which tiles are kept, and which are whole."""
    kept, whole = np.zeros((2, table.query_tiles, table.key_tiles), bool)
    rows = np.repeat(np.arange(table.query_tiles), table.key_tile_counts)
    kept[rows, table.keys], whole[rows, table.keys] = True, table.is_whole
    return kept, whole


@STEADY
@given(PATTERNS, LENGTHS, LENGTHS, st.integers(1, 17), st.integers(0, 20), st.integers(1, 6), st.booleans())
def test_a_table_covers_its_pattern(
    pattern: Pattern, queries: int, keys: int, size: int, offset: int, order: int, is_own_order: bool
):
    """Every allowed pair is in a kept tile, and a whole tile has no forbidden pair, in whatever order positions are
    listed.
    """
    order = pattern.residue_modulus if is_own_order else order
    pattern = pattern.for_key_count(keys)
    query_positions, key_positions = np.arange(queries) + offset, np.arange(keys)
    query_positions = query_positions[order_by_residue(query_positions, order)]
    key_positions = key_positions[order_by_residue(key_positions, order)]
    table = tile_table(pattern, query_positions, key_positions, size, order)
    some, every = allowed_tiles(pattern, query_positions, key_positions, size)
    kept, whole = as_dense(table)
    assert (kept | ~some).all()
    assert (every | ~whole).all()
    assert kept.sum() == len(table.keys) == len(table.is_whole) == table.offsets[-1]
    assert all((np.diff(table.key_tiles_of(row)) > 0).all() for row in range(table.query_tiles))


@STEADY
@given(PATTERNS, LENGTHS, LENGTHS, st.integers(1, 17))
def test_transposed_is_the_transpose(pattern: Pattern, queries: int, keys: int, size: int):
    table = tile_table(pattern.for_key_count(keys), np.arange(queries), np.arange(keys), size)
    transposed = table.transposed()
    for one, other in zip(as_dense(table), as_dense(transposed), strict=True):
        np.testing.assert_array_equal(one.T, other)
    again = transposed.transposed()
    for field in dataclasses.fields(table):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(table, field.name))


@STEADY
@given(PATTERNS, LENGTHS, LENGTHS)
def test_passes_are_the_pattern_and_share_no_pair(pattern: Pattern, queries: int, keys: int):
    """This holds also after the number of keys is filled in, because backends split patterns only then."""
    pattern = pattern.for_key_count(keys)
    query_L1, key_1M = np.arange(queries)[:, None], np.arange(keys)[None]
    times = sum(np.asarray(part(query_L1, key_1M), int) for part, _ in split_into_disjoint_patterns(pattern))
    np.testing.assert_array_equal(times, np.asarray(pattern(query_L1, key_1M), int))
    orders = [order for _, order in split_into_disjoint_patterns(pattern)]
    assert orders == sorted(set(orders))
    union = np.any([part(query_L1, key_1M) for part in pattern.union_members()], axis=0)
    np.testing.assert_array_equal(union, pattern(query_L1, key_1M))


def test_passes_of_the_presets():
    assert split_into_disjoint_patterns(parse_pattern('longformer(8)')) == ((parse_pattern('longformer(8)'), 1),)
    near, far = Causal() & Window(16), Causal() & Strided(16)
    assert split_into_disjoint_patterns(parse_pattern('sparse_strided(16)')) == ((near, 1), (far - near, 16))
    assert split_into_disjoint_patterns(Strided(16)) == ((Strided(16), 16),)


@pytest.mark.parametrize('text', EMPTY)
def test_few_kept_tiles_are_empty(text: str):
    """Few kept tiles are empty in the orders of the split patterns, and none where residues fill whole tiles."""
    assert share_of_empty_tiles(text, 1000) <= EMPTY[text]
    assert share_of_empty_tiles(text, 1024) == 0


def share_of_empty_tiles(text: str, length: int, size: int = 16) -> float:
    empty = kept = 0
    for part, order in split_into_disjoint_patterns(parse_pattern(text).for_key_count(length)):
        positions = np.arange(length)[order_by_residue(np.arange(length), order)]
        some, every = allowed_tiles(part, positions, positions, size)
        is_kept, is_whole = as_dense(tile_table(part, positions, positions, size, order))
        np.testing.assert_array_equal(is_whole, every)
        empty, kept = empty + int((is_kept & ~some).sum()), kept + int(is_kept.sum())
    return empty / kept


@pytest.mark.parametrize('text', ['strided(64)', 'window(64, dilation=16)'])
def test_an_order_of_its_own_keeps_far_fewer_tiles(text: str):
    pattern, positions = parse_pattern(text), np.arange(4096)
    natural = tile_table(pattern, positions, positions, 64)
    listed = positions[order_by_residue(positions, pattern.residue_modulus)]
    ordered = tile_table(pattern, listed, listed, 64, pattern.residue_modulus)
    assert len(ordered.keys) <= len(natural.keys) / 2 and len(ordered.keys) < 0.04 * 64**2


@pytest.mark.parametrize(
    'text',
    ['longformer(256, 1)', 'bigbird(64, 3)', 'sparse_fixed(128, 8)', 'sparse_strided(256)', 'causal & block(512)'],
)
def test_64k_by_64k_touches_ranges_alone(text: str, monkeypatch: pytest.MonkeyPatch):
    """The table of 65,536 positions is built from a thousand ranges of positions, never from pairs of positions."""
    length, size = 2**16, 64
    tiles = length // size
    seen = []

    def watch(cls: type[Pattern]) -> None:
        ranges_of = cls.tile_coverage

        def watched(self, query, key):
            result = ranges_of(self, query, key)
            seen.append(max(x.size for x in (query.low, key.low, *result)))
            return result

        monkeypatch.setattr(cls, 'tile_coverage', watched)
        monkeypatch.setattr(cls, '__call__', lambda *_: pytest.fail('asked for pairs'))

    for cls in vars(patterns).values():
        if isinstance(cls, type) and issubclass(cls, Pattern) and cls is not Pattern:
            watch(cls)
    for part, order in split_into_disjoint_patterns(parse_pattern(text).for_key_count(length)):
        positions = np.arange(length)[order_by_residue(np.arange(length), order)]
        table = tile_table(part, positions, positions, size, order)
        assert (table.query_tiles, table.key_tiles) == (tiles, tiles)
        assert len(table.offsets) == tiles + 1 and len(table.keys) == len(table.is_whole) <= 0.52 * tiles**2
    assert seen and max(seen) <= tiles**2


def test_listing_is_by_residue_then_in_its_own_order():
    positions = np.array([7, 3, 4, 5, 6, 8])
    np.testing.assert_array_equal(positions[order_by_residue(positions, 3)], [3, 6, 7, 4, 5, 8])
    np.testing.assert_array_equal(order_by_residue(positions, 1), np.arange(6))


def test_ranges_of_tiles():
    ranges = position_ranges(np.array([0, 4, 8, 1, 5, 2, 3]), 3, 4, axis=1)
    np.testing.assert_array_equal(np.hstack([ranges.low, ranges.high]), [[0, 8], [1, 5], [3, 3]])
    np.testing.assert_array_equal(np.hstack([ranges.residue_low, ranges.residue_high]), [[0, 0], [1, 2], [3, 3]])


def test_every_tile_keeps_all_and_calls_none_whole():
    table = full_tile_table(9, 5, 4)
    kept, whole = as_dense(table)
    assert kept.shape == (3, 2) and kept.all() and not whole.any()
    assert as_dense(tile_table(Full(), np.arange(9), np.arange(5), 4))[1].all()
