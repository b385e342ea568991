"""The table of [S, S] tiles of scores that a pattern keeps: built on the host, cached, without any [L, L] array.

Positions are listed in natural order, or by residue modulo a stride if a pattern is dense among positions of one
residue. A tile is S consecutive queries of that list by S consecutive keys. For each query tile a table holds the list
of key tiles to visit, as offsets into one flat list. Rows of two and of a thousand tiles thus fit without padding.
"""

import dataclasses
import functools

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges


@dataclasses.dataclass(frozen=True, eq=False)
class TileTable:
    """The tiles that a pattern keeps: for query tile i, the key tiles keys[offsets[i] : offsets[i + 1]], ascending.

    All pairs of a tile marked in `is_whole` (bool, like `keys`) are allowed; other tiles need a mask.
    """

    offsets: np.ndarray
    keys: np.ndarray
    is_whole: np.ndarray
    key_tiles: int

    @property
    def query_tiles(self) -> int:
        """The number of query tiles, the rows of the table."""
        return len(self.offsets) - 1

    @property
    def key_tile_counts(self) -> np.ndarray:
        """The number of key tiles that each query tile visits."""
        return np.diff(self.offsets)

    def key_tiles_of(self, query_tile: int) -> np.ndarray:
        """Returns the key tiles that one query tile visits."""
        return self.keys[self.offsets[query_tile] : self.offsets[query_tile + 1]]

    def transposed(self) -> 'TileTable':
        """Returns the table with queries and keys exchanged: for each key tile, the query tiles that visit the tile."""
        queries = np.repeat(np.arange(self.query_tiles), self.key_tile_counts)
        by_key = np.argsort(self.keys, kind='stable')
        offsets = np.concatenate([[0], np.cumsum(np.bincount(self.keys, minlength=self.key_tiles))])
        return TileTable(offsets, queries[by_key], self.is_whole[by_key], self.query_tiles)


def tile_table(pattern: Pattern, queries: np.ndarray, keys: np.ndarray, size: int, order: int = 1) -> TileTable:
    """Returns the table of the tiles that `pattern` keeps.

    Args:
        pattern: of one head, with the number of keys set.
        queries: positions [L] in the order of `listing`.
        keys: positions [M] in the order of `listing`.
        size: S, positions.
        order: the modulus of `listing`.
    """
    some, every = pattern.tile_coverage(position_ranges(queries, size, order, 1), position_ranges(keys, size, order, 0))
    shape = -(-len(queries) // size), -(-len(keys) // size)
    some, every = np.broadcast_to(some, shape), np.broadcast_to(every, shape)
    offsets = np.concatenate([[0], np.cumsum(some.sum(1))])
    return TileTable(offsets, np.nonzero(some)[1], every[some], shape[1])


def full_tile_table(queries: int, keys: int, size: int) -> TileTable:
    """Returns a table of all tiles, each with a mask, for positions that are known only while the program runs."""
    rows, columns = -(-queries // size), -(-keys // size)
    return TileTable(
        np.arange(rows + 1) * columns, np.tile(np.arange(columns), rows), np.zeros(rows * columns, bool), columns
    )


def order_by_residue(positions: np.ndarray, order: int) -> np.ndarray:
    """Returns the indices of the positions [L], sorted by position modulo `order`; equal residues keep their order."""
    return np.argsort(positions % order, kind='stable') if order > 1 else np.arange(len(positions))


def position_ranges(positions: np.ndarray, size: int, order: int, axis: int) -> PositionRanges:
    """Returns the range of positions and residues in each run of `size`, with a new axis; the last run may be short."""
    starts = np.arange(0, len(positions), size)
    residues = positions % order
    low, high, residue_low, residue_high = (
        np.expand_dims(reduce.reduceat(values, starts), axis)
        for values in (positions, residues)
        for reduce in (np.minimum, np.maximum)
    )
    return PositionRanges(low, high, order, residue_low, residue_high)


@functools.lru_cache(maxsize=256)
def disjoint_passes(pattern: Pattern) -> tuple[tuple[Pattern, int], ...]:
    """Returns the pattern as disjoint patterns, each with the order of positions in which it keeps few tiles.

    A union of parts that prefer different orders becomes one pass per order; no pair is in two passes.
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
