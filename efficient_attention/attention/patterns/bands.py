"""Band patterns of attention: a query reads the keys within a range of distances;
a dilated window skips keys in between.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges, Reach, SomeAndAll, check_sizes


@dataclasses.dataclass(frozen=True)
class Full(Pattern):
    """The pattern in which every query reads every key."""

    def __call__(self, query: Any, key: Any) -> Any:
        return (query - key) == (query - key)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns True and True for each pair of query and key ranges: the full pattern allows some position pair, and
        it allows every pair.
        """
        every = (query.low == query.low) & (key.low == key.low)
        return every, every

    @property
    def uses_positions(self) -> bool:
        """False, because the full pattern allows every pair of positions."""
        return False

    @property
    def is_distance_based(self) -> bool:
        """True, because the full pattern allows all distances."""
        return True

    @property
    def is_band(self) -> bool:
        """True, because the full pattern is the band of all distances."""
        return True


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
    """The causal pattern: a query reads itself and earlier keys, k <= q."""

    def __call__(self, query: Any, key: Any) -> Any:
        return key <= query

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair is causal, and whether
        every pair is causal.
        """
        return key.low <= query.high, key.high <= query.low

    @property
    def reach(self) -> Reach:
        """The causal pattern's reach: unbounded back to earlier keys, 0 ahead."""
        return Reach(math.inf, 0)

    @property
    def is_distance_based(self) -> bool:
        """True, because the causal pattern depends only on the distance between query and key."""
        return True

    @property
    def is_band(self) -> bool:
        """True, because the causal pattern is the band of all distances from 0 up."""
        return True


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
    """The window pattern: a query reads keys at most `radius` steps of `dilation` positions away;
    `& Causal()` removes later keys.

    A query reads up to 2 radius + 1 keys.
    Source: Beltagy et al. 2020, arXiv 2004.05150 (Longformer), section 3.1; `radius` is the window in its released
    code.
    """

    radius: int
    dilation: int = 1

    def __post_init__(self) -> None:
        check_sizes(0, self, radius=self.radius)
        check_sizes(1, self, dilation=self.dilation)
        check_sizes(0, self, reach=self.radius * self.dilation)

    def __call__(self, query: Any, key: Any) -> Any:
        distance = abs(query - key)
        near = distance <= self.radius * self.dilation
        return near if self.dilation == 1 else near & (distance % self.dilation == 0)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair is in the window, and
        whether every pair is.

        The nearest and the farthest pair of positions decide; with dilation, residues are compared as well.
        """
        reach = self.radius * self.dilation
        nearest = np.maximum(np.maximum(query.low - key.high, key.low - query.high), 0)
        farthest = np.maximum(query.high - key.low, key.high - query.low)
        some, every = multiples_in_ranges(self.dilation, query, key)
        return some & (nearest <= reach), every & (farthest <= reach)

    @property
    def residue_modulus(self) -> int:
        """The dilation, because a dilated window is dense among positions that are equal modulo the dilation."""
        return self.dilation

    @property
    def reach(self) -> Reach:
        """The window's reach: radius x dilation positions, the same distance back and ahead."""
        return Reach(self.radius * self.dilation, self.radius * self.dilation)

    @property
    def is_distance_based(self) -> bool:
        """True, because the window pattern depends only on the distance between query and key."""
        return True

    @property
    def is_band(self) -> bool:
        """True if the window has no gaps, which means that its dilation is 1."""
        return self.dilation == 1


def multiples_in_ranges(step: int, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
    """Returns two booleans for each pair of query and key ranges: whether some distance is a multiple of `step`, and
    whether every distance is.
    """
    if step == 1:
        return Full().tile_coverage(query, key)
    if query.order == key.order == step:
        some = (query.residue_low <= key.residue_high) & (key.residue_low <= query.residue_high)
        is_one = (query.residue_low == query.residue_high) & (key.residue_low == key.residue_high)
        return some, some & is_one
    some = (query.high - key.low) // step >= -((key.high - query.low) // step)
    return some, some & (query.low == query.high) & (key.low == key.high)
