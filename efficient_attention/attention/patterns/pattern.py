"""Defines `Pattern`, the base class of attention patterns, which say which query position may read which key position.

A pattern is a frozen, hashable predicate on positions, independent of the data. It accepts NumPy and JAX integer arrays
and returns the broadcast shape of its two arguments. Segments and padding are data, so they are never part of a
pattern.

A new pattern is a subclass with two methods: the predicate, and `tile_coverage`. For two ranges of positions,
`tile_coverage` says whether some pair and whether every pair is allowed, so no [L, L] array is ever needed. It may err
only on the safe side: it may call an empty tile kept, or a whole tile partial. The other properties, such as the reach,
have safe defaults, which a pattern can override with tighter values.

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
LARGEST = 2**31 - 1  # the largest int32, because positions are int32 in JAX
_FILLED_IN = ('layer', 'head', 'keys')  # names of the fields that `for_layer`, `for_head` and `for_key_count` set


@dataclasses.dataclass(frozen=True)
class PositionRanges:
    """The range of positions in each tile: lowest and highest position,
    and lowest and highest position modulo `order`.
    """

    low: np.ndarray
    high: np.ndarray
    order: int
    residue_low: np.ndarray
    residue_high: np.ndarray


class Reach(NamedTuple):
    """The largest distances in positions from a query to the keys that it reads: back to earlier keys, and ahead to
    later keys; infinite if unbounded.
    """

    back: float
    ahead: float


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A rule for which query position may read which key position; `&`, `|` and `-` combine patterns."""

    sign: ClassVar[str] = ''  # the operator between two combined patterns in text, such as '&'

    def __call__(self, query: Any, key: Any) -> Any:
        """Returns whether the query at position `query` may read the key at position `key`,
        for integer arrays that broadcast.
        """
        raise NotImplementedError(f'{type(self).__name__} defines no predicate')

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair is allowed, and
        whether every pair is allowed.

        Each query range is compared with each key range. The result is two boolean arrays: some, every.
        """
        raise NotImplementedError(f'{type(self).__name__} says nothing about ranges of positions')

    def parts(self) -> tuple['Pattern', ...]:
        """Returns the patterns that this pattern combines; none for a basic pattern."""
        return ()

    def map_parts(self, change: Callable[['Pattern'], 'Pattern']) -> 'Pattern':
        """Returns this pattern with `change` applied to each of the patterns that it combines."""
        return self if not self.parts() else type(self)(*(change(part) for part in self.parts()))

    def for_key_count(self, length: int) -> 'Pattern':
        """Returns the pattern for `length` keys; only patterns that depend on the position of the last key change."""
        return self.map_parts(lambda part: part.for_key_count(length))

    def for_head(self, head: int, heads: int) -> 'Pattern':
        """Returns the pattern of head number `head` out of `heads` query heads."""
        return self.map_parts(lambda part: part.for_head(head, heads))

    def for_layer(self, layer: int | tuple[int, ...]) -> 'Pattern':
        """Returns the pattern of layer number `layer`; only patterns that sample at random differ by layer.

        A tuple of ascending numbers gives one pattern object for all these layers. This object cannot be called: the
        caller takes the pattern of a single layer from `by_layer`.
        """
        return self.map_parts(lambda part: part.for_layer(layer))

    @property
    def layers(self) -> tuple[int, ...]:
        """The ascending layer numbers that `for_layer` got, if it got several; () for the pattern of a single layer."""
        return max((part.layers for part in self.parts()), default=(), key=len)

    def by_layer(self) -> tuple['Pattern', ...]:
        """Returns the pattern of each layer in `layers`, in order; only this pattern itself if `layers` is ()."""
        return tuple(self.for_layer(layer) for layer in self.layers) or (self,)

    @property
    def residue_modulus(self) -> int:
        """The modulus n for which sorting positions by position modulo n keeps the fewest tiles; 1 means natural
        order.
        """
        return max((part.residue_modulus for part in self.parts()), default=1)

    @property
    def uses_positions(self) -> bool:
        """Whether the pattern compares query and key positions."""
        return any(part.uses_positions for part in self.parts()) if self.parts() else True

    @property
    def reads_table(self) -> bool:
        """Whether the predicate looks positions up in a table, which not every device kernel can do."""
        return any(part.reads_table for part in self.parts())

    @property
    def reach(self) -> Reach:
        """An upper bound of the distance from a query of any head to the keys that it reads."""
        return Reach(math.inf, math.inf)

    @property
    def is_causal(self) -> bool:
        """Whether no query reads a later key, for any length, judged by the pattern's reach."""
        return self.reach.ahead == 0

    @property
    def is_distance_based(self) -> bool:
        """Whether the pattern depends only on query position - key position,
        judged by the patterns that it combines.
        """
        return bool(self.parts()) and all(part.is_distance_based for part in self.parts())

    @property
    def is_band(self) -> bool:
        """Whether the pattern is known to allow all distances within its reach, without gaps."""
        return False

    def union_members(self) -> list['Pattern']:
        """Returns patterns whose union is this pattern, such as both operands of `|`;
        none of them is itself a union.
        """
        return [self]

    def __and__(self, other: 'Pattern') -> 'Pattern':
        return And(self, other) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other: 'Pattern') -> 'Pattern':
        return Or(self, other) if isinstance(other, Pattern) else NotImplemented

    def __sub__(self, other: 'Pattern') -> 'Pattern':
        return Difference(self, other) if isinstance(other, Pattern) else NotImplemented


@dataclasses.dataclass(frozen=True)
class And(Pattern):
    """The pattern of all position pairs that both of two patterns allow."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '&'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) & self.right(query, key)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether both patterns allow some position pair,
        and whether both patterns allow every pair.

        The two patterns may allow different pairs, so `some` may be true for an empty tile.
        """
        left, right = self.left.tile_coverage(query, key), self.right.tile_coverage(query, key)
        return left[0] & right[0], left[1] & right[1]

    def parts(self) -> tuple[Pattern, ...]:
        """Returns the two patterns that `&` combines: its left and its right operand."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The shorter of the reaches of the two combined patterns, separately back and ahead."""
        return Reach(*map(min, zip(self.left.reach, self.right.reach, strict=True)))

    @property
    def is_band(self) -> bool:
        """True if both patterns of `&` are bands of distances."""
        return self.left.is_band and self.right.is_band

    def union_members(self) -> list[Pattern]:
        """Returns each union member of the left pattern combined by `&` with each union member of the right pattern."""
        return [
            left & right for left, right in itertools.product(self.left.union_members(), self.right.union_members())
        ]


@dataclasses.dataclass(frozen=True)
class Or(Pattern):
    """The pattern of all position pairs that at least one of two patterns allows."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '|'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) | self.right(query, key)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether either pattern allows some position pair,
        and whether one pattern allows every pair.
        """
        left, right = self.left.tile_coverage(query, key), self.right.tile_coverage(query, key)
        return left[0] | right[0], left[1] | right[1]

    def parts(self) -> tuple[Pattern, ...]:
        """Returns the two patterns that `|` combines: its left and its right operand."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The longer of the reaches of the two combined patterns, separately back and ahead."""
        return Reach(*map(max, zip(self.left.reach, self.right.reach, strict=True)))

    def union_members(self) -> list[Pattern]:
        """Returns the union members of the left pattern, followed by the union members of the right pattern."""
        return self.left.union_members() + self.right.union_members()


@dataclasses.dataclass(frozen=True)
class Difference(Pattern):
    """The pattern of all position pairs that `left` allows and `right` does not allow."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '-'

    def __call__(self, query: Any, key: Any) -> Any:
        # `^ True` is `~` of booleans, for which Mosaic GPU has no rule.
        return self.left(query, key) & (self.right(query, key) ^ True)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair is in `left` and not
        in `right`, and whether every pair is.

        Some pair counts as allowed if `left` allows some pair and `right` does not allow every pair. Every pair is
        allowed if `left` allows every pair and `right` allows none.
        """
        left, right = self.left.tile_coverage(query, key), self.right.tile_coverage(query, key)
        return left[0] & ~right[1], left[1] & ~right[0]

    def parts(self) -> tuple[Pattern, ...]:
        """Returns the two patterns that `-` combines: its left and its right operand."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The reach of the left pattern, because the right pattern only removes position pairs."""
        return self.left.reach

    def union_members(self) -> list[Pattern]:
        """Returns each union member of the left pattern minus the right pattern."""
        return [part - self.right for part in self.left.union_members()]


class PerHead(Pattern):
    """A pattern that differs by head: one pattern for each of n equal groups of neighbouring query heads."""

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
        """Returns the patterns of all groups of heads, in order."""
        return self.patterns

    @property
    def reach(self) -> Reach:
        """The longest reach of any head's pattern, separately back and ahead."""
        return Reach(*map(max, zip(*(part.reach for part in self.patterns), strict=True)))

    def for_head(self, head: int, heads: int) -> Pattern:
        """Returns the pattern of the group that contains head number `head`."""
        if heads % len(self.patterns):
            raise InputError(f'{self}: {heads} heads do not divide over {len(self.patterns)} patterns')
        return self.patterns[head * len(self.patterns) // heads].for_head(head, heads)


def head_patterns(pattern: Pattern, heads: int) -> list[Pattern]:
    """Returns the pattern of each of `heads` heads, or a list of only one pattern if all heads have the same."""
    patterns = [pattern.for_head(head, heads) for head in range(heads)]
    return patterns[:1] if len(set(patterns)) == 1 else patterns


def dense_mask(pattern: Pattern, query_length: int, key_length: int, heads: int | None = None) -> np.ndarray:
    """Returns the mask of a pattern on positions 0, 1, ... as booleans [L, M], or [H, L, M] if `heads` is given."""
    query_L1, key_1M = np.arange(query_length)[:, None], np.arange(key_length)[None, :]
    pattern = pattern.for_key_count(key_length)
    if heads is None:
        return np.asarray(pattern(query_L1, key_1M))
    return np.stack([pattern.for_head(head, heads)(query_L1, key_1M) for head in range(heads)])


def check_sizes(minimum: int, pattern: Pattern, **sizes: int) -> None:
    """Raises an InputError that names the pattern and the argument unless each size is a whole number >= `minimum`."""
    for name, size in sizes.items():
        what = f'{type(pattern).__name__}: {name}'
        require_at_least(minimum, what, size)
        require(size <= LARGEST, what, size, f'at most {LARGEST}')


def pattern_text(pattern: Pattern) -> str:
    """Returns a pattern as a user writes it, such as 'causal & window(128)';
    layer, head and number of keys are left out.
    """
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
    """Returns both operands of a combined pattern, and whether each operand needs brackets in text; a left operand with
    the same operator needs none.
    """
    left, right = pattern.parts()
    return [(left, left.sign not in ('', pattern.sign)), (right, right.sign != '')]


def _non_default_fields(pattern: Pattern) -> list[str]:
    """Returns the fields of a pattern as text: required fields by value,
    other fields as name=value if they differ from the default.
    """
    written: list[str] = []
    for field in dataclasses.fields(pattern):
        value = getattr(pattern, field.name)
        if field.default is dataclasses.MISSING:
            written += map(str, value) if isinstance(value, tuple) else [str(value)]
        elif field.name not in _FILLED_IN and value != field.default:
            written.append(f'{field.name}={value}')
    return written
