"""`Pattern`, the base class of attention patterns: which query position may read which key position, and combinations.

A pattern is a frozen, hashable predicate on positions, independent of the data. It accepts NumPy and JAX integer arrays
and returns the broadcast shape of its two arguments. Segments and padding are data, so they are never part of a
pattern.

A new pattern is a subclass with two methods: the predicate, and `tiles`. For two ranges of positions, `tiles` says
whether some pair and whether every pair is allowed, so no [L, L] array is ever needed. `tiles` may err only on the safe
side: it may call an empty tile kept, or a whole tile partial. The other properties, such as the reach, have safe
defaults, which a pattern can override with tighter values.

The concrete patterns are in the other files of this folder. `pattern_text` writes a pattern as text;
`attention/parsing.py` parses such a text.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from efficient_attention.errors import InputError, require, require_at_least

SomeAndAll = tuple[np.ndarray, np.ndarray]
LARGEST = 2**31 - 1  # positions are int32 in JAX
_FILLED_IN = ('layer', 'head', 'keys')  # fields set by `for_layer`, `for_head` and `for_key_count`


@dataclasses.dataclass(frozen=True)
class PositionRanges:
    """Runs of positions, one per tile: lowest and highest position, and lowest and highest position modulo `order`."""

    low: np.ndarray
    high: np.ndarray
    order: int
    residue_low: np.ndarray
    residue_high: np.ndarray


class Reach(NamedTuple):
    """The largest distance in positions from a query back and ahead to its keys; infinite if unbounded."""

    back: float
    ahead: float


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A predicate on (query position, key position); `&`, `|` and `-` combine patterns."""

    sign: ClassVar[str] = ''  # the operator that a combination writes between its two patterns

    def __call__(self, query: Any, key: Any) -> Any:
        """Returns whether `query` may read `key`: booleans of the broadcast shape of two integer arrays."""
        raise NotImplementedError(f'{type(self).__name__} defines no predicate')

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns (some, every): whether some pair, and whether every pair, of each two ranges is allowed.

        Each query range is compared with each key range.
        """
        raise NotImplementedError(f'{type(self).__name__} says nothing about ranges of positions')

    def parts(self) -> tuple['Pattern', ...]:
        """Returns the patterns that this one combines."""
        return ()

    def map_parts(self, change: Callable[['Pattern'], 'Pattern']) -> 'Pattern':
        """Returns this pattern with `change` applied to each pattern that it combines."""
        return self if not self.parts() else type(self)(*(change(part) for part in self.parts()))

    def for_key_count(self, length: int) -> 'Pattern':
        """Returns the pattern for a number of keys; only patterns that depend on where the keys end change."""
        return self.map_parts(lambda part: part.for_key_count(length))

    def for_head(self, head: int, heads: int) -> 'Pattern':
        """Returns the pattern of one of `heads` query heads."""
        return self.map_parts(lambda part: part.for_head(head, heads))

    def for_layer(self, layer: int) -> 'Pattern':
        """Returns the pattern of layer number `layer`; only patterns that sample something differ by layer."""
        return self.map_parts(lambda part: part.for_layer(layer))

    @property
    def residue_modulus(self) -> int:
        """The order of positions in which few tiles are kept: by residue modulo this number; 1 means natural order."""
        return max((part.residue_modulus for part in self.parts()), default=1)

    @property
    def uses_positions(self) -> bool:
        """Whether the pattern compares query and key positions."""
        return any(part.uses_positions for part in self.parts()) if self.parts() else True

    @property
    def reach(self) -> Reach:
        """The distance that queries of any head may read; an upper bound that follows from the pattern's form."""
        return Reach(math.inf, math.inf)

    @property
    def is_causal(self) -> bool:
        """Whether no query reads a later key, for any length, as far as the pattern's form shows."""
        return self.reach.ahead == 0

    @property
    def is_distance_based(self) -> bool:
        """Whether the pattern depends only on query position - key position, judged by the patterns it combines."""
        return bool(self.parts()) and all(part.is_distance_based for part in self.parts())

    @property
    def is_band(self) -> bool:
        """Whether the pattern is known to allow one whole range of distances, that of `reach`."""
        return False

    def union_members(self) -> list['Pattern']:
        """Returns patterns whose union is this pattern; none of them is itself a union."""
        return [self]

    def __and__(self, other: 'Pattern') -> 'Pattern':
        return And(self, other) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other: 'Pattern') -> 'Pattern':
        return Or(self, other) if isinstance(other, Pattern) else NotImplemented

    def __sub__(self, other: 'Pattern') -> 'Pattern':
        return Difference(self, other) if isinstance(other, Pattern) else NotImplemented


@dataclasses.dataclass(frozen=True)
class And(Pattern):
    """Pairs that both patterns allow."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '&'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) & self.right(query, key)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns (some, every): some if both patterns allow some pair, every if both allow every pair.

        The two patterns may allow different pairs, so `some` may be true for an empty tile.
        """
        left, right = self.left.tile_coverage(query, key), self.right.tile_coverage(query, key)
        return left[0] & right[0], left[1] & right[1]

    def parts(self) -> tuple[Pattern, ...]:
        """Returns the left and the right pattern."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The shorter of the two reaches on each side."""
        return Reach(*map(min, zip(self.left.reach, self.right.reach, strict=True)))

    @property
    def is_band(self) -> bool:
        """True if both patterns are bands."""
        return self.left.is_band and self.right.is_band

    def union_members(self) -> list[Pattern]:
        """Returns each alternative of the left pattern combined with each of the right one."""
        return [
            left & right for left, right in itertools.product(self.left.union_members(), self.right.union_members())
        ]


@dataclasses.dataclass(frozen=True)
class Or(Pattern):
    """Pairs that at least one of the two patterns allows."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '|'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) | self.right(query, key)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns (some, every): some if either pattern allows some pair, every if one pattern allows every pair."""
        left, right = self.left.tile_coverage(query, key), self.right.tile_coverage(query, key)
        return left[0] | right[0], left[1] | right[1]

    def parts(self) -> tuple[Pattern, ...]:
        """Returns the left and the right pattern."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The longer of the two reaches on each side."""
        return Reach(*map(max, zip(self.left.reach, self.right.reach, strict=True)))

    def union_members(self) -> list[Pattern]:
        """Returns the alternatives of the left pattern, then those of the right one."""
        return self.left.union_members() + self.right.union_members()


@dataclasses.dataclass(frozen=True)
class Difference(Pattern):
    """Pairs that `left` allows and `right` does not."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '-'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) & ~self.right(query, key)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns (some, every): some if `left` allows some pair and `right` does not allow all.

        Every pair is allowed if `left` allows every pair and `right` allows none.
        """
        left, right = self.left.tile_coverage(query, key), self.right.tile_coverage(query, key)
        return left[0] & ~right[1], left[1] & ~right[0]

    def parts(self) -> tuple[Pattern, ...]:
        """Returns the left and the right pattern."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The reach of the left pattern; `right` only removes pairs."""
        return self.left.reach

    def union_members(self) -> list[Pattern]:
        """Returns the alternatives of the left pattern, each without the right pattern."""
        return [part - self.right for part in self.left.union_members()]


class PerHead(Pattern):
    """One pattern for each of n equal groups of neighbouring query heads."""

    patterns: tuple[Pattern, ...]

    def __init__(self, *patterns: Pattern) -> None:
        if not patterns:
            raise InputError('per_head needs at least one pattern')
        for pattern in patterns:
            if not isinstance(pattern, Pattern):
                raise InputError(f'per_head is given {pattern!r}; it takes patterns')
        object.__setattr__(self, 'patterns', patterns)

    def __repr__(self) -> str:
        return f'PerHead({", ".join(map(repr, self.patterns))})'

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerHead) and self.patterns == other.patterns

    def __hash__(self) -> int:
        return hash((PerHead, self.patterns))

    def __call__(self, query: Any, key: Any) -> Any:  # noqa: ARG002
        raise InputError(f'{self}: the pattern of all heads at once is undefined; call for_head first')

    def parts(self) -> tuple[Pattern, ...]:
        """Returns the patterns of the groups of heads, in order."""
        return self.patterns

    @property
    def reach(self) -> Reach:
        """The longest reach of any head on each side."""
        return Reach(*map(max, zip(*(part.reach for part in self.patterns), strict=True)))

    def for_head(self, head: int, heads: int) -> Pattern:
        """Returns the pattern of the head's group."""
        if heads % len(self.patterns):
            raise InputError(f'{self}: {heads} heads do not divide over {len(self.patterns)} patterns')
        return self.patterns[head * len(self.patterns) // heads].for_head(head, heads)


def head_patterns(pattern: Pattern, heads: int) -> list[Pattern]:
    """Returns the pattern of each of `heads` heads, or only one pattern if all heads have the same."""
    patterns = [pattern.for_head(head, heads) for head in range(heads)]
    return patterns[:1] if len(set(patterns)) == 1 else patterns


def dense_mask(pattern: Pattern, query_length: int, key_length: int, heads: int | None = None) -> np.ndarray:
    """Returns the mask of `pattern` on positions 0, 1, ...: booleans [L, M], or [H, L, M] if `heads` is given."""
    query_L1, key_1M = np.arange(query_length)[:, None], np.arange(key_length)[None, :]
    pattern = pattern.for_key_count(key_length)
    if heads is None:
        return np.asarray(pattern(query_L1, key_1M))
    return np.stack([pattern.for_head(head, heads)(query_L1, key_1M) for head in range(heads)])


def check_sizes(minimum: int, pattern: Pattern, **sizes: int) -> None:
    """Raises an InputError with the pattern's and argument's names unless each size is a whole number >= `minimum`."""
    for name, size in sizes.items():
        what = f'{type(pattern).__name__}: {name}'
        require_at_least(minimum, what, size)
        require(size <= LARGEST, what, size, f'at most {LARGEST}')


def pattern_text(pattern: Pattern) -> str:
    """Returns a pattern as a user writes it, such as 'causal & window(128)', without layer, head and number of keys."""
    if pattern.sign:
        left, right = (
            f'({pattern_text(part)})' if needs_brackets else pattern_text(part)
            for part, needs_brackets in _bracketed_operands(pattern)
        )
        return f'{left} {pattern.sign} {right}'
    name = re.sub('(?<=[a-z])(?=[A-Z])', '_', type(pattern).__name__).lower()
    values = [pattern_text(part) for part in pattern.parts()] or _non_default_fields(pattern)
    return f'{name}({", ".join(values)})' if values else name


def _bracketed_operands(pattern: Pattern) -> list[tuple[Pattern, bool]]:
    """Returns both parts of a combination, and whether each needs brackets; equal operators associate to the left."""
    left, right = pattern.parts()
    return [(left, left.sign not in ('', pattern.sign)), (right, right.sign != '')]


def _non_default_fields(pattern: Pattern) -> list[str]:
    """Returns a pattern's fields as text: those without a default by value, others as name=value if not the default."""
    written: list[str] = []
    for field in dataclasses.fields(pattern):
        value = getattr(pattern, field.name)
        if field.default is dataclasses.MISSING:
            written += map(str, value) if isinstance(value, tuple) else [str(value)]
        elif field.name not in _FILLED_IN and value != field.default:
            written.append(f'{field.name}={value}')
    return written
