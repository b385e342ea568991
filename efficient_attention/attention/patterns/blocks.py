"""Block patterns of attention: a query reads the keys in its own block of positions and in neighbouring blocks."""

import dataclasses
from typing import Any

from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges, Reach, SomeAndAll, check_sizes


@dataclasses.dataclass(frozen=True)
class Block(Pattern):
    """The block pattern: a query reads keys in its own block of `size` positions,
    `back` blocks before it and `ahead` blocks after it.

    Source: blockwise attention, Qiu et al. 2019, arXiv 1911.02972; with neighbours, Zaheer et al. 2020 (BigBird).
    """

    size: int
    back: int = 0
    ahead: int = 0

    def __post_init__(self) -> None:
        check_sizes(1, self, size=self.size)
        check_sizes(0, self, back=self.back, ahead=self.ahead)

    def __call__(self, query: Any, key: Any) -> Any:
        blocks = key // self.size - query // self.size
        return (blocks >= -self.back) & (blocks <= self.ahead)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair is in allowed blocks,
        and whether every pair is.
        """
        lowest = key.low // self.size - query.high // self.size
        highest = key.high // self.size - query.low // self.size
        some = (highest >= -self.back) & (lowest <= self.ahead)
        return some, (lowest >= -self.back) & (highest <= self.ahead)

    @property
    def reach(self) -> Reach:
        """The block pattern's reach: back from a block's last position to the first key that the block reads, and ahead
        from the block's first position to the last key.
        """
        return Reach((self.back + 1) * self.size - 1, (self.ahead + 1) * self.size - 1)
