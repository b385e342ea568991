"""Defines the two patterns of the Sparse Transformer: keys at multiples of a stride,
and the last keys of each block.
"""

import dataclasses
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.bands import multiples_in_ranges
from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges, SomeAndAll, check_sizes
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class Strided(Pattern):
    """The strided pattern: a query reads the keys whose distance is a multiple of `stride`, both back and ahead.

    Source: Child et al. 2019, arXiv 1904.10509 (Sparse Transformer), section 4.3, the second strided head.
    """

    stride: int

    def __post_init__(self) -> None:
        check_sizes(1, self, stride=self.stride)

    def __call__(self, query: Any, key: Any) -> Any:
        return (query - key) % self.stride == 0

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some distance is a multiple of the
        stride, and whether every distance is.
        """
        return multiples_in_ranges(self.stride, query, key)

    @property
    def residue_modulus(self) -> int:
        """The stride, because allowed pairs form blocks if positions are sorted by position modulo the stride."""
        return self.stride

    @property
    def is_distance_based(self) -> bool:
        """True, because the strided pattern depends only on the distance between query and key."""
        return True


@dataclasses.dataclass(frozen=True)
class Summary(Pattern):
    """The summary pattern: every query reads the keys at the last `width` positions of any block of `block` positions.

    Source: Child et al. 2019, arXiv 1904.10509, section 4.3, the summary columns of the fixed pattern.
    """

    block: int
    width: int

    def __post_init__(self) -> None:
        check_sizes(1, self, block=self.block, width=self.width)
        if self.width > self.block:
            raise InputError(f'{self}: width must be at most block')

    def __call__(self, query: Any, key: Any) -> Any:
        return (key % self.block >= self.block - self.width) & (query == query)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some key is at a summary position, and
        whether every key is.

        Residues decide if positions are listed by residue; else the number of summary positions in each range decides.
        """
        if key.order == self.block:
            first, any_query = self.block - self.width, query.low == query.low
            return any_query & (key.residue_high >= first), any_query & (key.residue_low >= first)
        count = self.count_summary_positions(key.high) - self.count_summary_positions(key.low - 1)
        any_query = query.low == query.low
        return any_query & (count > 0), any_query & (count == key.high - key.low + 1)

    def count_summary_positions(self, position: np.ndarray) -> np.ndarray:
        """Returns how many of the positions 0, 1, ... `position` are summary positions, the last ones of their
        block.
        """
        blocks, rest = np.divmod(position + 1, self.block)
        return blocks * self.width + np.maximum(rest - (self.block - self.width), 0)

    @property
    def residue_modulus(self) -> int:
        """The block size, because summary positions are contiguous if positions are sorted by position modulo the block
        size.
        """
        return self.block
