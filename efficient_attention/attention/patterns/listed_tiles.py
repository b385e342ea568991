"""Defines `ListedTiles`, an attention pattern that is an explicit list of tiles of queries by keys."""

import dataclasses
import functools
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges, SomeAndAll, check_sizes
from efficient_attention.errors import InputError

MOST_TILES = 2**13  # limit of tile numbers, because the table has one byte per pair of tiles


@dataclasses.dataclass(frozen=True)
class ListedTiles(Pattern):
    """The pattern that allows exactly the listed tiles of `size` x `size` positions; `pairs` alternates between the
    number of a query tile and the number of its key tile.

    This is for a layout that was sampled elsewhere, such as the random blocks of a BigBird checkpoint. With `PerHead`
    each head has its own list.
    """

    size: int
    pairs: tuple[int, ...]

    def __post_init__(self) -> None:
        check_sizes(1, self, size=self.size)
        for number in self.pairs:
            check_sizes(0, self, tile=number)
        if not self.pairs or len(self.pairs) % 2:
            raise InputError(f'ListedTiles: {len(self.pairs)} tile numbers; they must be pairs of query and key tile')
        if max(self.pairs) >= MOST_TILES:
            raise InputError(f'ListedTiles: tile {max(self.pairs)}; it must be below {MOST_TILES}')

    def __call__(self, query: Any, key: Any) -> Any:
        table = _listed_tile_mask(self)
        rows, columns = query // self.size, key // self.size
        if isinstance(query, np.ndarray) and isinstance(key, np.ndarray):
            return table[np.minimum(rows, len(table) - 1), np.minimum(columns, table.shape[1] - 1)]
        import jax.numpy as jnp  # imported here so that NumPy users need no JAX

        return jnp.asarray(table)[jnp.minimum(rows, len(table) - 1), jnp.minimum(columns, table.shape[1] - 1)]

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair is in a listed tile,
        and whether every pair is.
        """
        table = _listed_tile_mask(self)
        sums = np.pad(table.astype(np.int64), ((1, 0), (1, 0))).cumsum(0).cumsum(1)
        ends = [
            (np.minimum(ranges.low // self.size, limit), np.minimum(ranges.high // self.size + 1, limit))
            for ranges, limit in zip((query, key), table.shape, strict=True)
        ]
        (top, bottom), (left, right) = ends
        found = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        rows = query.high // self.size + 1 - query.low // self.size
        return found > 0, found == rows * (key.high // self.size + 1 - key.low // self.size)

    @property
    def reads_table(self) -> bool:
        """True, because the listed tiles are a table."""
        return True


@functools.lru_cache(maxsize=1024)
def _listed_tile_mask(pattern: ListedTiles) -> np.ndarray:
    """Returns the listed tiles as booleans [query tiles, key tiles],
    with an extra False row and column for tiles beyond the list.
    """
    pairs = np.asarray(pattern.pairs).reshape(-1, 2)
    table = np.zeros(pairs.max(axis=0) + 2, bool)
    table[pairs[:, 0], pairs[:, 1]] = True
    return table
