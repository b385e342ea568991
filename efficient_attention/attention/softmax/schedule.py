"""How a tile table is executed: rows of tiles of similar length, padded to one length, as arrays for a compiled loop.

A table's rows may hold two tiles or a thousand (global tokens). Rows are sorted into a few classes by length, so that
padding to the longest of a class wastes little; each class runs as one loop over chunks of its rows. Where the rows of
a class read nearly the same key tiles (full and causal attention, global rows) they share one list and the keys are
not gathered at all.
"""

import dataclasses
import functools

import numpy as np

from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.patterns.tile_table import TileTable, every_tile, listing, passes, tile_table

# Rows are sorted into as few classes as keep the padding below this share of the kept tiles, and at most CLASSES.
PADDING = 0.1
CLASSES = 6
# Rows share the union of their lists of tiles where it is at most this many times as long as the longest list.
SPREAD = 1.3
# Borders between classes are sought at so many lengths at most.
LENGTHS = 512


@dataclasses.dataclass(frozen=True, eq=False)
class RowClass:
    """Rows of tiles that are executed alike.

    rows [n]: tile numbers on the side whose results are computed; lists [h, n, w]: the tiles of the other side that
    each row visits, filled up with the number of an empty tile, h = 1 or the number of heads; with is_shared, n is 1
    and all rows visit the same tiles.
    """

    rows: np.ndarray
    lists: np.ndarray
    is_shared: bool
    checks_pattern: bool  # some pair of these tiles is not in the pattern
    checks_keys: bool  # some position of the other side's tiles does not exist


@dataclasses.dataclass(frozen=True, eq=False)
class Pass:
    """One disjoint part of a pattern: how queries and keys are listed, and the classes of both sides."""

    patterns: tuple[Pattern, ...]  # one, or one for each head
    size: int  # S
    query_listing: np.ndarray  # [L]
    key_listing: np.ndarray  # [M]
    by_query: tuple[RowClass, ...]  # for the output and dq
    by_key: tuple[RowClass, ...]  # for dk and dv
    tiles: int  # kept, all heads together, or of one head where they do not differ


@functools.lru_cache(maxsize=256)
def schedule(
    patterns: tuple[Pattern, ...],
    query_positions: bytes | int,
    key_positions: bytes | int,
    size: int,
) -> tuple[Pass, ...]:
    """The passes that together visit what the patterns keep.

    Args:
        patterns: one, or one for each head; number of keys filled in.
        query_positions: int32 positions [L] as bytes, so that the result can be cached; or only L, where the program
            alone knows them.
        key_positions: likewise.
        size: S.
    """
    if isinstance(query_positions, int) or isinstance(key_positions, int):
        queries, keys = (count_of(positions) for positions in (query_positions, key_positions))
        tables = [every_tile(queries, keys, size)]
        return (make_pass(patterns, np.arange(queries), np.arange(keys), tables, size),)
    queries_L, keys_M = np.frombuffer(query_positions, np.int32), np.frombuffer(key_positions, np.int32)
    # Heads differ in what they draw, never in how their parts are ordered (see `head_groups`).
    by_head = [passes(pattern) for pattern in patterns]
    result = []
    for parts in zip(*by_head, strict=True):
        order = parts[0][1]
        query_listing, key_listing = listing(queries_L, order), listing(keys_M, order)
        tables = [
            tile_table(pattern, queries_L[query_listing], keys_M[key_listing], size, order) for pattern, _ in parts
        ]
        if any(len(table.keys) for table in tables):
            pass_patterns = tuple(pattern for pattern, _ in parts)
            result.append(make_pass(pass_patterns, query_listing, key_listing, tables, size))
    return tuple(result)


def count_of(positions: bytes | int) -> int:
    """How many positions there are."""
    return positions if isinstance(positions, int) else len(positions) // 4


def make_pass(
    patterns: tuple[Pattern, ...],
    query_listing: np.ndarray,
    key_listing: np.ndarray,
    tables: list[TileTable],
    size: int,
) -> Pass:
    """A pass with the classes of both sides."""
    is_ragged = len(key_listing) % size != 0
    return Pass(
        patterns=patterns,
        size=size,
        query_listing=query_listing,
        key_listing=key_listing,
        by_query=row_classes(tables, is_ragged),
        by_key=row_classes([table.transposed() for table in tables], is_ragged),
        tiles=sum(len(table.keys) for table in tables),
    )


def row_classes(tables: list[TileTable], is_ragged: bool) -> tuple[RowClass, ...]:
    """The rows of equally shaped tables, one for each head or one for all, sorted into classes."""
    counts = np.max([table.counts for table in tables], axis=0)
    classes = []
    for rows in group_by_length(counts):
        width = int(counts[rows].max())
        lists = np.full((len(tables), len(rows), width), tables[0].key_tiles)
        for table, head_lists in zip(tables, lists, strict=True):
            for row, entry in zip(rows, head_lists, strict=True):
                entry[: table.counts[row]] = table.row(int(row))
        is_whole = all(
            table.is_whole[table.offsets[row] : table.offsets[row + 1]].all() for table in tables for row in rows
        )
        classes.append(share(rows, lists, tables[0].key_tiles, not is_whole, is_ragged))
    return tuple(classes)


def group_by_length(counts: np.ndarray) -> list[np.ndarray]:
    """Row numbers in groups of similar, positive length, longest first: those whose padding is least."""
    rows = np.argsort(-counts, kind='stable')[: np.count_nonzero(counts)]
    if not len(rows):
        return []
    lengths = counts[rows]
    starts = np.flatnonzero(np.diff(lengths, prepend=lengths[0] + 1))  # where a shorter length begins
    starts = starts[np.linspace(0, len(starts) - 1, min(len(starts), LENGTHS)).astype(int)]
    borders = cheapest_borders(lengths, np.append(starts, len(rows)))
    return [np.sort(group) for group in np.split(rows, borders)]


def cheapest_borders(lengths: np.ndarray, places: np.ndarray) -> list[int]:
    """Where to divide rows of falling length, at some of `places` (ascending, the first and the last are the ends).

    A group costs its number of rows times its longest row. By dynamic programming: best[j] is the cost of all rows
    before places[j + 1] in the groups made so far, cuts[-1][j] the place where the last of them begins.
    """
    starts, ends = places[:-1, None], places[None, 1:]
    price = np.where(ends > starts, lengths[starts] * (ends - starts), np.inf)
    best, cuts = price[0], list[np.ndarray]()
    while best[-1] > (1 + PADDING) * lengths.sum() and len(cuts) < CLASSES - 1:
        totals = best[:-1, None] + price[1:]
        cuts.append(totals.argmin(0) + 1)
        best = totals.min(0)
    borders, last = [], len(places) - 2
    for cut in reversed(cuts):
        borders.append(int(places[cut[last]]))
        last = cut[last] - 1
    return borders[::-1]


def share(rows: np.ndarray, lists: np.ndarray, empty: int, checks_pattern: bool, is_ragged: bool) -> RowClass:
    """The class with one common list where that visits at most SPREAD times as many tiles; else with its own lists."""
    union = np.unique(lists[lists < empty])
    if lists.shape[1] > 1 and len(union) <= SPREAD * lists.shape[2]:
        is_same = bool((lists == lists[:1, :1]).all())
        return RowClass(rows, union[None, None], True, checks_pattern or not is_same, is_ragged)
    return RowClass(rows, lists, False, checks_pattern, is_ragged or bool((lists == empty).any()))
