"""Schedules the tiles that a pattern keeps: pads the lists of visited tiles
to a few lengths, as arrays for compiled loops.

A query tile may visit two key tiles, or a thousand (global tokens). Tiles are sorted into a few classes by the
length of their lists, so that padding to the longest list of a class wastes little. Each class runs as one loop with a
few tiles per step. If the tiles of a class visit nearly the same tiles, they share one list, and the visited tiles are
not gathered for each tile. This is the case for full and causal attention and for global tokens.
"""

import dataclasses
import functools

import numpy as np

from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.patterns.tile_table import (
    TileTable,
    full_tile_table,
    order_by_residue,
    split_into_disjoint_patterns,
    tile_table,
)

# Tiles are sorted into at most CLASSES classes: as few as keep the padding below this share of all kept tiles.
PADDING = 0.1
CLASSES = 6
# Tiles share the union of their lists of visited tiles if it is at most this many times as long as the longest list.
SPREAD = 1.3
# Key tiles are numbered anew for each head if that shortens the padded lists to at most this share.
WORTH_SORTING = 0.9
# At most this many list lengths are tried as borders between classes of tiles.
LENGTHS = 512


@dataclasses.dataclass(frozen=True, eq=False)
class TileClass:
    """A class of n tiles that one loop computes: query tiles that each visit w key tiles,
    or key tiles that each visit w query tiles.

    Args:
        computed_n: indices of the tiles whose results are computed.
        visited_Nhnw: indices of the tiles that each computed tile visits, padded with the index of an empty tile; h is
            1 or the number of heads, N is 1 or the number of layers that share a program.
        is_shared: whether all tiles of the class visit the same tiles; axis n of `visited_Nhnw` is then 1.
        checks_pattern: whether the pattern forbids some pair of positions in these tiles.
        checks_keys: whether a visited tile is padded, so that its keys must be masked.
    """

    computed_n: np.ndarray
    visited_Nhnw: np.ndarray
    is_shared: bool
    checks_pattern: bool
    checks_keys: bool


@dataclasses.dataclass(frozen=True, eq=False)
class SortedKeyTiles:
    """Key tiles that are numbered by the length of their lists, separately for each layer and head.

    If heads draw different tiles, their long lists belong to different key tiles. In this order, lists of similar
    length have the same number in all heads, so lists need less padding.

    Args:
        order_Nhn: [..., i] is the key tile with the number i.
        by_key: classes of the numbered key tiles.
    """

    order_Nhn: np.ndarray
    by_key: tuple[TileClass, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class TilePass:
    """The tiles of one of the disjoint patterns into which a pattern is split: the order of the positions, and the
    classes of tiles.
    """

    patterns: tuple[Pattern, ...]  # one pattern for all heads, or one for each head; they may stand for several layers
    size: int  # S, the number of positions in a tile
    query_listing_L: np.ndarray  # indices of queries, in the order in which queries are cut into tiles
    key_listing_M: np.ndarray
    # classes of query tiles; a loop over them computes the output and the query gradients
    by_query: tuple[TileClass, ...]
    by_key: tuple[TileClass, ...]  # classes of key tiles; a loop over them computes the gradients of keys and values
    tiles: int  # number of kept tiles over all heads and layers, or of one head if heads do not differ
    sorted_keys: SortedKeyTiles | None = None  # replaces `by_key` in loops without logit terms, where it is shorter


@functools.lru_cache(maxsize=256)
def schedule_tiles(
    patterns: tuple[Pattern, ...],
    query_positions: bytes | int,
    key_positions: bytes | int,
    size: int,
) -> tuple[TilePass, ...]:
    """Splits the patterns into disjoint patterns and returns one `TilePass` for each; together they cover all tiles
    that the patterns keep.

    Args:
        patterns: one pattern, or one for each head; the number of keys is set. If the patterns stand for several
            layers, the tables of all layers are padded to equal shapes.
        query_positions: int32 positions [L] as bytes, so that the result can be cached; or only L, if positions are
            known only while the program runs.
        key_positions: like `query_positions`, for the M keys.
        size: S, the number of positions of a tile.
    """
    if isinstance(query_positions, int) or isinstance(key_positions, int):
        queries, keys = (position_count(positions) for positions in (query_positions, key_positions))
        tables = [[full_tile_table(queries, keys, size)]]
        return (make_tile_pass(patterns, np.arange(queries), np.arange(keys), tables, size),)
    queries_L, keys_M = np.frombuffer(query_positions, np.int32), np.frombuffer(key_positions, np.int32)
    # Heads of one group differ only in their random samples, so their patterns are split alike and in the same order.
    by_head = [split_into_disjoint_patterns(pattern) for pattern in patterns]
    result = []
    for of_heads in zip(*by_head, strict=True):
        pass_patterns, order = tuple(pattern for pattern, _ in of_heads), of_heads[0][1]
        query_listing_L, key_listing_M = order_by_residue(queries_L, order), order_by_residue(keys_M, order)
        tables = [
            [tile_table(one, queries_L[query_listing_L], keys_M[key_listing_M], size, order) for one in of_layer]
            for of_layer in zip(*(pattern.by_layer() for pattern in pass_patterns), strict=True)
        ]
        if any(len(table.keys) for of_layer in tables for table in of_layer):
            result.append(make_tile_pass(pass_patterns, query_listing_L, key_listing_M, tables, size))
    return tuple(result)


def position_count(positions: bytes | int) -> int:
    """Returns the number of positions, given as int32 bytes or as this number itself."""
    return positions if isinstance(positions, int) else len(positions) // 4


def make_tile_pass(
    patterns: tuple[Pattern, ...],
    query_listing_L: np.ndarray,
    key_listing_M: np.ndarray,
    tables: list[list[TileTable]],
    size: int,
) -> TilePass:
    """Returns the `TilePass` for these tables of kept tiles, one for each layer and head, with its query tiles and its
    key tiles sorted into classes.
    """
    is_ragged = len(key_listing_M) % size != 0
    by_key_tables = [[table.transposed() for table in of_layer] for of_layer in tables]
    by_key = tile_classes(by_key_tables, is_ragged)
    return TilePass(
        patterns=patterns,
        size=size,
        query_listing_L=query_listing_L,
        key_listing_M=key_listing_M,
        by_query=tile_classes(tables, is_ragged),
        by_key=by_key,
        tiles=sum(len(table.keys) for of_layer in tables for table in of_layer),
        sorted_keys=sort_key_tiles(by_key_tables, by_key, is_ragged),
    )


def sort_key_tiles(
    tables: list[list[TileTable]], by_key: tuple[TileClass, ...], is_ragged: bool
) -> SortedKeyTiles | None:
    """Returns the key tiles numbered by the length of their lists, separately for each layer and head; None if that
    hardly shortens the padded lists of the classes `by_key`.

    `tables` has for each layer a table of query tiles per key tile, one for each head or one for all.
    """
    if len(tables) == len(tables[0]) == 1:
        return None
    order_Nhn = np.array([[np.argsort(-one.key_tile_counts, kind='stable') for one in of_layer] for of_layer in tables])
    renumbered = [
        [table.reordered(order_n) for table, order_n in zip(of_layer, order_hn, strict=True)]
        for of_layer, order_hn in zip(tables, order_Nhn, strict=True)
    ]
    classes = tile_classes(renumbered, is_ragged)
    return SortedKeyTiles(order_Nhn, classes) if padded_tiles(classes) <= WORTH_SORTING * padded_tiles(by_key) else None


def padded_tiles(classes: tuple[TileClass, ...]) -> int:
    """Returns how many tiles the loops over these classes visit for one head, including padding."""
    return sum(len(one.computed_n) * one.visited_Nhnw.shape[3] for one in classes)


def tile_classes(tables: list[list[TileTable]], is_ragged: bool) -> tuple[TileClass, ...]:
    """Returns the query tiles of the tables sorted into classes with lists of similar length.

    `tables` has for each layer one table per head, or one for all heads.
    """
    every = [table for of_layer in tables for table in of_layer]
    counts_n = np.max([table.key_tile_counts for table in every], axis=0)
    classes = []
    for computed_n in group_by_length(counts_n):
        width = int(counts_n[computed_n].max())
        visited = np.full((len(every), len(computed_n), width), every[0].key_tiles)
        for table, visited_nw in zip(every, visited, strict=True):
            for tile, visited_w in zip(computed_n, visited_nw, strict=True):
                visited_w[: table.key_tile_counts[tile]] = table.key_tiles_of(int(tile))
        is_whole = all(
            table.is_whole[table.offsets[tile] : table.offsets[tile + 1]].all()
            for table in every
            for tile in computed_n
        )
        visited_Nhnw = visited.reshape(len(tables), -1, *visited.shape[1:])
        classes.append(share_tile_list(computed_n, visited_Nhnw, every[0].key_tiles, not is_whole, is_ragged))
    return tuple(classes)


def group_by_length(counts_n: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of all tiles that visit at least one tile, grouped by similar length of their lists of
    visited tiles, longest lists first.

    counts_n: how many tiles each tile visits, which is the length of its list.
    """
    tiles = np.argsort(-counts_n, kind='stable')[: np.count_nonzero(counts_n)]
    if not len(tiles):
        return []
    lengths = counts_n[tiles]
    starts = np.flatnonzero(np.diff(lengths, prepend=lengths[0] + 1))  # indices in `tiles` at which shorter lists begin
    starts = starts[np.linspace(0, len(starts) - 1, min(len(starts), LENGTHS)).astype(int)]
    borders = optimal_group_borders(lengths, np.append(starts, len(tiles)))
    return [np.sort(group) for group in np.split(tiles, borders)]


def optimal_group_borders(lengths_n: np.ndarray, places: np.ndarray) -> list[int]:
    """Returns where to divide lists of falling length into groups so that padding stays small;
    the borders are chosen among `places`.

    `places` ascend; the first and the last place are the ends of the lists. A group costs its number of lists times its
    longest list. Dynamic programming: best[j] is the cost of all lists before places[j + 1] in the groups made so far,
    and cuts[-1][j] is the place where the last group begins.
    """
    starts, ends = places[:-1, None], places[None, 1:]
    price = np.where(ends > starts, lengths_n[starts] * (ends - starts), np.inf)
    best, cuts = price[0], list[np.ndarray]()
    while best[-1] > (1 + PADDING) * lengths_n.sum() and len(cuts) < CLASSES - 1:
        totals = best[:-1, None] + price[1:]
        cuts.append(totals.argmin(0) + 1)
        best = totals.min(0)
    borders, last = [], len(places) - 2
    for cut in reversed(cuts):
        borders.append(int(places[cut[last]]))
        last = cut[last] - 1
    return borders[::-1]


def share_tile_list(
    computed_n: np.ndarray, visited_Nhnw: np.ndarray, empty: int, checks_pattern: bool, is_ragged: bool
) -> TileClass:
    """Returns the class of these tiles. They share one list of visited tiles if it is at most SPREAD times as long as
    the longest list of one tile.

    Otherwise each tile keeps its own list.
    """
    union = np.unique(visited_Nhnw[visited_Nhnw < empty])
    if (visited_Nhnw.shape[2] > 1 or visited_Nhnw.shape[:2] == (1, 1)) and len(union) <= SPREAD * visited_Nhnw.shape[3]:
        is_same = bool((visited_Nhnw == visited_Nhnw[:1, :1, :1]).all())
        return TileClass(computed_n, union[None, None, None], True, checks_pattern or not is_same, is_ragged)
    return TileClass(computed_n, visited_Nhnw, False, checks_pattern, is_ragged or bool((visited_Nhnw == empty).any()))
