"""Lists the [S, S] tiles of scores that a pattern keeps; the table is built on the host
and cached, without any [L, L] array.

Positions are listed in natural order, or by residue modulo a stride if a pattern is dense among positions of one
residue. A tile is S consecutive queries of that list by S consecutive keys. For each query tile a table holds the list
of key tiles to visit, as offsets into one flat list. Query tiles with two and with a thousand key tiles thus fit
without padding.
"""

import dataclasses
import functools

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges


@dataclasses.dataclass(frozen=True, eq=False)
class TileTable:
    """The tiles that a pattern keeps: query tile i reads the key tiles keys[offsets[i] : offsets[i + 1]], in ascending
    order.

    All pairs of a tile marked in `is_whole` (bool, like `keys`) are allowed; other tiles need a mask.
    """

    offsets: np.ndarray
    keys: np.ndarray
    is_whole: np.ndarray
    key_tiles: int

    @property
    def query_tiles(self) -> int:
        """The number of query tiles in the table."""
        return len(self.offsets) - 1

    @property
    def key_tile_counts(self) -> np.ndarray:
        """The number of key tiles that each query tile reads."""
        return np.diff(self.offsets)

    def key_tiles_of(self, query_tile: int) -> np.ndarray:
        """Returns the key tiles that one query tile reads."""
        return self.keys[self.offsets[query_tile] : self.offsets[query_tile + 1]]

    def transposed(self) -> 'TileTable':
        """Returns the table with queries and keys exchanged: for each key tile, the query tiles that read it."""
        queries = np.repeat(np.arange(self.query_tiles), self.key_tile_counts)
        by_key = np.argsort(self.keys, kind='stable')
        offsets = np.concatenate([[0], np.cumsum(np.bincount(self.keys, minlength=self.key_tiles))])
        return TileTable(offsets, queries[by_key], self.is_whole[by_key], self.query_tiles)

    def reordered(self, order_n: np.ndarray) -> 'TileTable':
        """Returns the table with its query tiles in another order: query tile i is the former tile order_n[i]."""
        counts = self.key_tile_counts[order_n]
        places = np.repeat(self.offsets[order_n] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return TileTable(offsets, self.keys[places], self.is_whole[places], self.key_tiles)


def tile_table(pattern: Pattern, queries: np.ndarray, keys: np.ndarray, size: int, order: int = 1) -> TileTable:
    """Returns the table of the tiles that a pattern keeps for these query and key positions.

    Args:
        pattern: the pattern of one head, with the number of keys set.
        queries: positions [L], sorted as by `order_by_residue`.
        keys: positions [M], sorted as by `order_by_residue`.
        size: S, the number of positions in a tile.
        order: the modulus by which the positions are sorted; 1 means natural order.
    """
    some, every = pattern.tile_coverage(position_ranges(queries, size, order, 1), position_ranges(keys, size, order, 0))
    shape = -(-len(queries) // size), -(-len(keys) // size)
    some, every = np.broadcast_to(some, shape), np.broadcast_to(every, shape)
    offsets = np.concatenate([[0], np.cumsum(some.sum(1))])
    return TileTable(offsets, np.nonzero(some)[1], every[some], shape[1])


def full_tile_table(queries: int, keys: int, size: int) -> TileTable:
    """Returns a table of all tiles, each with a mask; this table is used for positions that are known only while the
    program runs.
    """
    rows, columns = -(-queries // size), -(-keys // size)
    return TileTable(
        np.arange(rows + 1) * columns, np.tile(np.arange(columns), rows), np.zeros(rows * columns, bool), columns
    )


def order_by_residue(positions: np.ndarray, order: int) -> np.ndarray:
    """Returns the indices that sort positions by position modulo `order`;
    positions with equal residues keep their order.
    """
    return np.argsort(positions % order, kind='stable') if order > 1 else np.arange(len(positions))


def position_ranges(positions: np.ndarray, size: int, order: int, axis: int) -> PositionRanges:
    """Returns the lowest and highest position, and the lowest and highest position modulo `order`, of each tile of
    `size` positions; the last tile may be short.
    """
    starts = np.arange(0, len(positions), size)
    residues = positions % order
    low, high, residue_low, residue_high = (
        np.expand_dims(reduce.reduceat(values, starts), axis)
        for values in (positions, residues)
        for reduce in (np.minimum, np.maximum)
    )
    return PositionRanges(low, high, order, residue_low, residue_high)


@functools.lru_cache(maxsize=256)
def split_into_disjoint_patterns(pattern: Pattern) -> tuple[tuple[Pattern, int], ...]:
    """Splits a pattern into disjoint patterns; each comes with the modulus by
    which positions are sorted so that few tiles are kept.

    The members of a union may prefer different orders; each order then becomes one pass, and no pair is in two passes.
    """
    by_order: dict[int, Pattern] = {}
    for part in pattern.union_members():
        by_order[part.residue_modulus] = (
            by_order[part.residue_modulus] | part if part.residue_modulus in by_order else part
        )
    if len(by_order) == 1:
        return ((pattern, pattern.residue_modulus),)
    result: list[tuple[Pattern, int]] = []
    earlier: Pattern | None = None
    for order, part in sorted(by_order.items(), key=lambda item: item[0]):
        result.append((part if earlier is None else part - earlier, order))
        earlier = part if earlier is None else earlier | part
    return tuple(result)
