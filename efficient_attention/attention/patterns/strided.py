"""The patterns of the Sparse Transformer: keys every so many positions, and the last ones of each block."""

import dataclasses
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.bands import multiples
from efficient_attention.attention.patterns.pattern import Pattern, Ranges, SomeAndAll, check_sizes
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class Strided(Pattern):
    """Keys whose distance to the query is a multiple of `stride`, on both sides.

    Source: Child et al. 2019, arXiv 1904.10509 (Sparse Transformer), section 4.3, its second strided head.
    """

    stride: int

    def __post_init__(self) -> None:
        check_sizes(1, self, stride=self.stride)

    def __call__(self, query: Any, key: Any) -> Any:
        return (query - key) % self.stride == 0

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """Decided by residues where positions are listed by them, else by the range of differences."""
        return multiples(self.stride, query, key)

    @property
    def order(self) -> int:
        """The stride: listed by residue, the pairs that are allowed form blocks."""
        return self.stride

    @property
    def goes_by_distance(self) -> bool:
        """True: the distance of query and key decides alone."""
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

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """Decided by residues where positions are listed by them, else by counts of summary positions."""
        if key.order == self.block:
            first, any_query = self.block - self.width, query.low == query.low
            return any_query & (key.residue_high >= first), any_query & (key.residue_low >= first)
        count = self.count_up_to(key.high) - self.count_up_to(key.low - 1)
        any_query = query.low == query.low
        return any_query & (count > 0), any_query & (count == key.high - key.low + 1)

    def count_up_to(self, position: np.ndarray) -> np.ndarray:
        """How many positions 0 ... `position` are summary positions."""
        blocks, rest = np.divmod(position + 1, self.block)
        return blocks * self.width + np.maximum(rest - (self.block - self.width), 0)

    @property
    def order(self) -> int:
        """The block size: listed by residue, summary positions lie together; in natural order each tile holds a few."""
        return self.block
