"""The patterns of the Sparse Transformer: keys at every `stride`-th distance, and the last keys of each block."""

import dataclasses
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.bands import multiples_in_ranges
from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges, SomeAndAll, check_sizes
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class Strided(Pattern):
    """Keys whose distance to the query is a multiple of `stride`, on both sides.

    Source: Child et al. 2019, arXiv 1904.10509 (Sparse Transformer), section 4.3, the second strided head.
    """

    stride: int

    def __post_init__(self) -> None:
        check_sizes(1, self, stride=self.stride)

    def __call__(self, query: Any, key: Any) -> Any:
        return (query - key) % self.stride == 0

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns (some, every), decided by residues if positions are listed by residue, else by differences."""
        return multiples_in_ranges(self.stride, query, key)

    @property
    def residue_modulus(self) -> int:
        """The stride: with positions listed by residue, the allowed pairs form blocks."""
        return self.stride

    @property
    def is_distance_based(self) -> bool:
        """True: the pattern depends only on the distance between query and key."""
        return True


@dataclasses.dataclass(frozen=True)
class Summary(Pattern):
    """Keys among the last `width` positions of any block of `block` positions.

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
        """Returns (some, every), decided by residues if positions are listed by residue, else by counts.

        The counts are of summary positions in each range.
        """
        if key.order == self.block:
            first, any_query = self.block - self.width, query.low == query.low
            return any_query & (key.residue_high >= first), any_query & (key.residue_low >= first)
        count = self.count_summary_positions(key.high) - self.count_summary_positions(key.low - 1)
        any_query = query.low == query.low
        return any_query & (count > 0), any_query & (count == key.high - key.low + 1)

    def count_summary_positions(self, position: np.ndarray) -> np.ndarray:
        """Returns how many of the positions 0 ... `position` are summary positions."""
        blocks, rest = np.divmod(position + 1, self.block)
        return blocks * self.width + np.maximum(rest - (self.block - self.width), 0)

    @property
    def residue_modulus(self) -> int:
        """The block size: listed by residue, summary positions are contiguous; in natural order each tile has a few."""
        return self.block
