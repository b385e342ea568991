"""Patterns with a prefix or with global tokens, in which all queries may read the first or the last positions."""

import dataclasses
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges, SomeAndAll, check_sizes
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class Prefix(Pattern):
    """The first `count` positions read one another; later ones also read all keys up to themselves (Raffel et al. 2019,
    T5).
    """

    count: int

    def __post_init__(self) -> None:
        check_sizes(1, self, count=self.count)

    def __call__(self, query: Any, key: Any) -> Any:
        return (key <= query) | (key < self.count)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns whether some pair of the ranges is in the pattern, and whether every pair is."""
        return (key.low <= query.high) | (key.low < self.count), (key.high <= query.low) | (key.high < self.count)


@dataclasses.dataclass(frozen=True)
class GlobalTokens(Pattern):
    """The global-token pattern: the first `count` and the last `last` positions read all keys and are read by all
    queries.

    Sources: Longformer (arXiv 2004.05150, section 3.1) and BigBird (arXiv 2007.14062, section 2).
    """

    count: int
    last: int = 0
    keys: int = 0  # number of keys, set by `for_key_count`; only used with `last`

    def __post_init__(self) -> None:
        check_sizes(0, self, count=self.count, last=self.last)
        if self.count + self.last < 1:
            raise InputError(f'{self}: count or last must be at least 1')

    def __call__(self, query: Any, key: Any) -> Any:
        start = self.last_global_start()
        return (query < self.count) | (key < self.count) | (query >= start) | (key >= start)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair includes a global
        position, and whether every pair does.
        """
        start = self.last_global_start()
        some = (query.low < self.count) | (key.low < self.count) | (query.high >= start) | (key.high >= start)
        every = (query.high < self.count) | (key.high < self.count) | (query.low >= start) | (key.low >= start)
        return some, every

    def last_global_start(self) -> int:
        """Returns the first of the global positions at the end of the row;
        if there are none, a position beyond all others.
        """
        if self.last and not self.keys:
            raise InputError(f'{self}: final global tokens need the number of keys; call for_key_count first')
        return self.keys - self.last if self.last else np.iinfo(np.int32).max

    def for_key_count(self, length: int) -> 'GlobalTokens':
        """Returns the pattern for `length` keys, so that the global positions at the end of the row are known."""
        return dataclasses.replace(self, keys=length) if self.last else self
