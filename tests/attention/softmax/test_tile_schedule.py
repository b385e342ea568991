"""Tests tile schedules: every allowed pair is executed once for queries and once for keys, with little padding."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import Causal, Full, GlobalTokens, Pattern, PerHead, RandomTiles, Window
from efficient_attention.attention.patterns.presets import bigbird
from efficient_attention.attention.patterns.tile_table import TileTable, tile_table
from efficient_attention.attention.softmax.blocked_backend import head_groups
from efficient_attention.attention.softmax.tile_schedule import (
    CLASSES,
    PADDING,
    SPREAD,
    TileClass,
    TilePass,
    group_by_length,
    padded_tiles,
    position_count,
    schedule_tiles,
    share_tile_list,
    tile_classes,
)
from tests.attention.random_patterns import PATTERNS

STEADY = settings(max_examples=200, deadline=None, derandomize=True)
LENGTHS = st.integers(1, 60)
TABLES = st.lists(st.lists(st.integers(0, 40), max_size=20, unique=True).map(sorted), min_size=1, max_size=30)


def as_bytes(positions: np.ndarray) -> bytes:
    return positions.astype(np.int32).tobytes()


def tiles_of(listing: np.ndarray, size: int) -> np.ndarray:
    """Returns the listed positions in tiles [n, S], -1 where there is none; the last tile is empty."""
    tiles = -(-len(listing) // size) + 1
    return np.concatenate([listing, np.full(tiles * size - len(listing), -1)]).reshape(tiles, size)


def executed(
    tile_pass: TilePass, head: int, by_key: bool, queries: np.ndarray, keys: np.ndarray, size: int
) -> np.ndarray:
    """Returns how often a head's pass computes each pair of a query and a key [L, M], as the loops on the device do."""
    sides = tiles_of(tile_pass.query_listing_L, size), tiles_of(tile_pass.key_listing_M, size)
    times = np.zeros((len(queries), len(keys)), int)
    pattern = tile_pass.patterns[min(head, len(tile_pass.patterns) - 1)]
    for group in tile_pass.by_key if by_key else tile_pass.by_query:
        for tile, visited in lists_of(group, head):
            query_tiles, key_tiles = (visited, [tile]) if by_key else ([tile], visited)
            query, key = sides[0][query_tiles].ravel(), sides[1][key_tiles].ravel()
            if not by_key and not (group.checks_pattern or group.checks_keys):
                assert (key >= 0).all(), 'a key that does not exist would be read'
            query, key = query[query >= 0], key[key >= 0]
            allowed = pattern(queries[query][:, None], keys[key][None]) if group.checks_pattern else True
            np.add.at(times, np.ix_(query, key), allowed)
    return times


def lists_of(group: TileClass, head: int) -> list[tuple[int, np.ndarray]]:
    """Returns each computed tile of a class with the tiles that it visits for a head."""
    (visited_hnw,) = group.visited_Nhnw  # of one layer
    visited_nw = visited_hnw[min(head, len(visited_hnw) - 1)]
    lists = np.broadcast_to(visited_nw, (len(group.computed_n), visited_nw.shape[1]))
    return list(zip(group.computed_n, lists, strict=True))


@STEADY
@given(PATTERNS, LENGTHS, LENGTHS, st.integers(1, 17), st.integers(0, 20), st.sampled_from([1, 3]))
def test_every_allowed_pair_is_executed_once(
    pattern: Pattern, queries: int, keys: int, size: int, offset: int, heads: int
):
    """This holds for outputs and key gradients, also where heads draw different tiles and queries are offset."""
    query_positions, key_positions = np.arange(queries) + offset, np.arange(keys)
    for group, patterns in head_groups(pattern.for_key_count(keys), heads):
        plan = schedule_tiles(patterns, as_bytes(query_positions), as_bytes(key_positions), size)
        for place, head in enumerate(group):
            of_head = pattern.for_key_count(keys).for_head(head, heads)
            expected = np.asarray(of_head(query_positions[:, None], key_positions[None]), int)
            for by_key in (False, True):
                times = [executed(one, place, by_key, query_positions, key_positions, size) for one in plan]
                np.testing.assert_array_equal(sum(times, np.zeros_like(expected)), expected)


@pytest.mark.parametrize('is_known', [(False, False), (True, False)])
def test_positions_that_only_the_program_knows_visit_every_tile(is_known: tuple[bool, bool]):
    queries, keys = np.arange(9) + 4, np.arange(13)
    given_positions = [as_bytes(x) if known else len(x) for x, known in zip((queries, keys), is_known, strict=True)]
    (tile_pass,) = schedule_tiles((Causal(),), *given_positions, 4)
    assert tile_pass.tiles == 3 * 4 and all(group.checks_pattern for group in (*tile_pass.by_query, *tile_pass.by_key))
    for by_key in (False, True):
        np.testing.assert_array_equal(
            executed(tile_pass, 0, by_key, queries, keys, 4), Causal()(queries[:, None], keys[None])
        )


def test_a_pattern_that_keeps_nothing_has_no_passes():
    positions = as_bytes(np.arange(8))
    assert schedule_tiles((Full() - Full(),), positions, positions, 4) == ()
    assert schedule_tiles((Window(1),), as_bytes(np.arange(4) + 50), positions, 4) == ()


def test_schedules_are_made_once():
    positions = as_bytes(np.arange(8))
    assert schedule_tiles((Causal(),), positions, positions, 4) is schedule_tiles(
        (Causal(),), bytes(positions), positions, 4
    )
    assert position_count(positions) == position_count(8) == 8


# ---- tiles that differ by layer and head ----


def drawn_pass(layers: tuple[int, ...] | int, heads: int = 3, keys: int = 256) -> TilePass:
    """Returns the one pass of BigBird's pattern with random blocks of 8 positions."""
    pattern = bigbird(8, 2).for_layer(layers).for_key_count(keys)
    positions = as_bytes(np.arange(keys))
    (one,) = schedule_tiles(tuple(pattern.for_head(head, heads) for head in range(heads)), positions, positions, 8)
    return one


def tiles_by_computed_tile(classes: tuple[TileClass, ...], layer: int, head: int) -> dict[int, list[int]]:
    """Returns the tiles that each computed tile visits in a layer, without padding."""
    found = {}
    for group in classes:
        layers, heads, _, width = group.visited_Nhnw.shape
        visited_nw = group.visited_Nhnw[min(layer, layers - 1), min(head, heads - 1)]
        visited_nw = np.broadcast_to(visited_nw, (len(group.computed_n), width))
        for tile, visited in zip(group.computed_n, visited_nw, strict=True):
            found[int(tile)] = [int(one) for one in visited if one < 32]
    return found


def test_layers_share_classes_and_keep_their_tiles():
    layers = (1, 4, 5)
    together = drawn_pass(layers)
    for index, layer in enumerate(layers):
        apart = drawn_pass(layer)
        for side in ('by_query', 'by_key'):
            for head in range(3):
                shared, own = getattr(together, side), getattr(apart, side)
                assert tiles_by_computed_tile(shared, index, head) == tiles_by_computed_tile(own, 0, head)
    assert together.tiles == sum(drawn_pass(layer).tiles for layer in layers)


def test_sorted_key_tiles_are_the_same_tiles_with_less_padding():
    tile_pass = drawn_pass((0, 1))
    keys = tile_pass.sorted_keys
    assert keys is not None and padded_tiles(keys.by_key) < padded_tiles(tile_pass.by_key)
    for layer in range(2):
        for head in range(3):
            by_number = tiles_by_computed_tile(keys.by_key, layer, head)
            order_n = keys.order_Nhn[layer, head]
            by_tile = {int(order_n[number]): visited for number, visited in by_number.items()}
            assert by_tile == tiles_by_computed_tile(tile_pass.by_key, layer, head)
    positions = as_bytes(np.arange(256))
    assert schedule_tiles((Causal().for_key_count(256),), positions, positions, 8)[0].sorted_keys is None


# ---- classes of tiles ----


def make_table(rows: list[list[int]], tiles: int = 41) -> TileTable:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(int)
    keys = np.array([key for row in rows for key in row], int)
    return TileTable(offsets, keys, np.ones(len(keys), bool), tiles)


def check_classes(tables: list[TileTable], classes: tuple[TileClass, ...]) -> None:
    """Checks that each tile is in one class with all tiles it visits.

    Other tiles are visited only in classes that share a list.
    """
    computed = [tile for group in classes for tile in group.computed_n]
    counts = np.max([table.key_tile_counts for table in tables], axis=0)
    assert sorted(computed) == list(np.flatnonzero(counts))
    for group in classes:
        assert group.visited_Nhnw.shape[1] in (1, len(tables))
        assert group.visited_Nhnw.shape[2] in (1, len(group.computed_n))
        for head, table in enumerate(tables):
            for tile, visited in lists_of(group, head):
                real = visited[visited < table.key_tiles].tolist()
                assert len(set(real)) == len(real)
                extra = set(real) - set(table.key_tiles_of(int(tile)).tolist())
                assert set(table.key_tiles_of(int(tile)).tolist()) <= set(real)
                assert not extra or (group.is_shared and group.checks_pattern)
                assert group.checks_pattern or len(real) == table.key_tile_counts[tile]
                assert group.checks_keys or len(real) == len(visited)


@STEADY
@given(TABLES)
def test_classes_compute_each_tile_of_a_table_once_and_waste_little(rows: list[list[int]]):
    table = make_table(rows)
    classes = tile_classes([[table]], is_ragged=False)
    check_classes([table], classes)
    assert len(classes) <= CLASSES
    padded = sum(table.key_tile_counts[group.computed_n].max() * len(group.computed_n) for group in classes)
    assert padded <= (1 + PADDING) * table.key_tile_counts.sum() or len(classes) == CLASSES
    for group in classes:
        longest = table.key_tile_counts[group.computed_n].max()
        assert longest <= group.visited_Nhnw.shape[3] <= (SPREAD if group.is_shared else 1) * longest


@STEADY
@given(st.lists(TABLES, min_size=2, max_size=3))
def test_classes_of_tables_for_each_head(tables: list[list[list[int]]]):
    """Heads that draw different tiles have equally many tiles with a list, but other tiles in the lists."""
    rows = min(len(table) for table in tables)
    made = [make_table(table[:rows]) for table in tables]
    check_classes(made, tile_classes([made], is_ragged=True))
    assert all(group.checks_keys for group in tile_classes([made], is_ragged=True))


def cost(counts: np.ndarray, groups: list[np.ndarray]) -> int:
    return sum(len(group) * counts[group].max() for group in groups)


def test_lengths_far_apart_fall_into_few_groups():
    counts = np.array([0, 1000, 3, 4, 3, 980, 0, 50])
    assert [group.tolist() for group in group_by_length(counts)] == [[1, 5], [2, 3, 4, 7]]
    assert group_by_length(np.zeros(3, int)) == []
    assert [group.tolist() for group in group_by_length(np.array([5, 5, 0, 5]))] == [[0, 1, 3]]
    # Evenly spread lengths are best divided evenly: the cost is (1 + 1 / CLASSES) times their sum.
    even = np.arange(1, 100_000, 7)
    groups = group_by_length(even)
    assert len(groups) == CLASSES
    assert cost(even, groups) == pytest.approx(even.sum() * (1 + 1 / CLASSES), rel=1e-2)


@STEADY
@given(st.lists(st.integers(0, 30), min_size=1, max_size=9).map(np.array))
def test_no_division_into_as_many_groups_is_cheaper(counts: np.ndarray):
    groups = group_by_length(counts)
    tiles = np.argsort(-counts, kind='stable')[: np.count_nonzero(counts)]
    divisions = itertools.combinations(range(1, len(tiles)), max(0, len(groups) - 1))
    for borders in divisions if len(tiles) else ():
        assert cost(counts, groups) <= cost(counts, np.split(tiles, borders))


def test_tiles_that_visit_nearly_the_same_share_one_list():
    computed_n = np.arange(2)
    whole = {'checks_pattern': False, 'is_ragged': False}
    same = share_tile_list(computed_n, np.array([[[[0, 1, 2], [0, 1, 2]]]]), 9, **whole)
    assert same.is_shared and same.visited_Nhnw.tolist() == [[[[0, 1, 2]]]]
    assert not same.checks_pattern and not same.checks_keys
    other = share_tile_list(computed_n, np.array([[[[0, 1, 2, 3], [0, 1, 2, 4]]]]), 9, **whole)
    assert other.is_shared and other.visited_Nhnw.tolist() == [[[[0, 1, 2, 3, 4]]]] and other.checks_pattern
    apart = share_tile_list(computed_n, np.array([[[[0, 1, 2], [3, 4, 9]]]]), 9, **whole)
    assert (
        not apart.is_shared
        and apart.visited_Nhnw.shape == (1, 1, 2, 3)
        and apart.checks_keys
        and not apart.checks_pattern
    )


def test_a_pattern_of_whole_tiles_is_not_evaluated():
    """BigBird's blocks are whole tiles: only the padding of lists of unequal length has to be checked."""
    queries, keys = np.arange(238), np.arange(240)
    (tile_pass,) = schedule_tiles(
        (bigbird(4, 1).for_key_count(240).for_head(0, 1),), as_bytes(queries), as_bytes(keys), 4
    )
    assert not any(group.checks_pattern for group in (*tile_pass.by_query, *tile_pass.by_key))
    (window,) = schedule_tiles((Window(3),), as_bytes(np.arange(40)), as_bytes(np.arange(40)), 4)
    assert all(group.checks_pattern for group in window.by_query)


@pytest.mark.parametrize(
    'pattern, at_most',
    [
        (Full(), 1.0),
        (Causal(), 1.17),
        (Window(256), 1.07),
        (Causal() & Window(256), 1.07),
        (bigbird(64, 3), 1.07),
        (Window(256) | GlobalTokens(1), 1.07),
        (parse_pattern('sparse_strided(128)'), 1.07),
        (parse_pattern('sparse_fixed(128, 8)'), 1.32),
        (RandomTiles(3, 64), 1.07),
    ],
)
def test_padding_of_the_presets(pattern: Pattern, at_most: float):
    """Compares the executed tiles with the kept tiles, at 16,384 positions in tiles of 64."""
    positions = as_bytes(np.arange(16_384))
    plan = schedule_tiles((pattern.for_key_count(16_384),), positions, positions, 64)
    kept = sum(tile_pass.tiles for tile_pass in plan)
    for side in ('by_query', 'by_key'):
        run = sum(
            len(group.computed_n) * group.visited_Nhnw.shape[3]
            for tile_pass in plan
            for group in getattr(tile_pass, side)
        )
        print(f'{pattern}: {side} {run / kept:.3f}')
        assert kept <= run <= at_most * kept


def test_heads_with_tiles_of_their_own_share_one_schedule():
    pattern = PerHead(bigbird(4, 1), Causal()).for_key_count(64)
    groups = head_groups(pattern, 4)
    assert [(heads, len(patterns)) for heads, patterns in groups] == [((0, 1), 2), ((2, 3), 1)]
    positions = as_bytes(np.arange(64))
    (tile_pass,) = schedule_tiles(groups[0][1], positions, positions, 4)
    tables = [tile_table(head, np.arange(64), np.arange(64), 4) for head in groups[0][1]]
    assert (tables[0].keys != tables[1].keys).any()
    check_classes(tables, tile_pass.by_query)
    check_classes([table.transposed() for table in tables], tile_pass.by_key)
    assert tile_pass.tiles == sum(len(table.keys) for table in tables)
