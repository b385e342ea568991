"""The class of patterns, which say for positions, whatever the data, which query may read which key; and combinations.

A pattern is a frozen, hashable predicate on positions. It works on NumPy and JAX integer arrays alike, and its shape
is the broadcast shape of its two arguments. Segments and padding are data, so they are never part of a pattern.

A new pattern is a subclass with two methods: the predicate, and `tiles`, which says for ranges of positions whether
some pair and whether every pair of them is allowed, so that no [L, L] array is ever needed. `tiles` may err on the
safe side: call an empty tile kept, or a whole tile partial. What others ask of a pattern besides (how far it reaches,
whether it goes by distance) has an answer that is always safe, and a pattern that knows better overrides it. The
patterns themselves are in the files beside this one. `pattern_text` writes a pattern; `attention/parsing.py` reads it.
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
LARGEST = 2**31 - 1  # positions are int32 where JAX computes them
_FILLED_IN = ('layer', 'head', 'keys')  # by `for_layer`, `for_head` and `for_keys`


@dataclasses.dataclass(frozen=True)
class Ranges:
    """Runs of positions, one for each tile: lowest and highest position, and the same of position modulo `order`."""

    low: np.ndarray
    high: np.ndarray
    order: int
    residue_low: np.ndarray
    residue_high: np.ndarray


class Reach(NamedTuple):
    """How far before and after a query its keys lie at most, in positions; infinite where nothing bounds it."""

    back: float
    ahead: float


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A predicate on (query position, key position); `&`, `|` and `-` combine patterns."""

    sign: ClassVar[str] = ''  # of a combination, written between its two patterns

    def __call__(self, query: Any, key: Any) -> Any:
        """Whether `query` may read `key`: booleans of the broadcast shape of two integer arrays."""
        raise NotImplementedError(f'{type(self).__name__} defines no predicate')

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """Whether some and whether every pair of each query range with each key range is allowed."""
        raise NotImplementedError(f'{type(self).__name__} says nothing about ranges of positions')

    def parts(self) -> tuple['Pattern', ...]:
        """The patterns that this one is made of."""
        return ()

    def rebuild(self, change: Callable[['Pattern'], 'Pattern']) -> 'Pattern':
        """This pattern with `change` made to each of its parts."""
        return self if not self.parts() else type(self)(*(change(part) for part in self.parts()))

    def for_keys(self, length: int) -> 'Pattern':
        """The pattern for a number of keys, for patterns that depend on where the keys end."""
        return self.rebuild(lambda part: part.for_keys(length))

    def for_head(self, head: int, heads: int) -> 'Pattern':
        """The pattern of one of `heads` query heads."""
        return self.rebuild(lambda part: part.for_head(head, heads))

    def for_layer(self, layer: int) -> 'Pattern':
        """The pattern of layer number `layer`; only patterns that draw something differ."""
        return self.rebuild(lambda part: part.for_layer(layer))

    @property
    def order(self) -> int:
        """s > 1: few tiles are kept when positions are listed by residue modulo s; 1: in natural order."""
        return max((part.order for part in self.parts()), default=1)

    @property
    def compares_positions(self) -> bool:
        """Whether the pattern needs to know how query and key positions relate."""
        return any(part.compares_positions for part in self.parts()) if self.parts() else True

    @property
    def reach(self) -> Reach:
        """How far queries of any head may read, by the pattern's form; it may err on the far side."""
        return Reach(math.inf, math.inf)

    @property
    def is_causal(self) -> bool:
        """Whether no query reads a later key, whatever the length; only what its form says counts."""
        return self.reach.ahead == 0

    @property
    def goes_by_distance(self) -> bool:
        """Whether query position - key position alone decides, as far as its parts are known to."""
        return bool(self.parts()) and all(part.goes_by_distance for part in self.parts())

    @property
    def is_band(self) -> bool:
        """Whether the pattern is known to be one run of distances, those of its reach."""
        return False

    def alternatives(self) -> list['Pattern']:
        """Patterns whose union is this one, none of which is itself a union."""
        return [self]

    def __and__(self, other: 'Pattern') -> 'Pattern':
        return And(self, other) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other: 'Pattern') -> 'Pattern':
        return Or(self, other) if isinstance(other, Pattern) else NotImplemented

    def __sub__(self, other: 'Pattern') -> 'Pattern':
        return Without(self, other) if isinstance(other, Pattern) else NotImplemented


@dataclasses.dataclass(frozen=True)
class And(Pattern):
    """Pairs that both patterns allow."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '&'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) & self.right(query, key)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """Some pair where both patterns allow some, even if not the same; every pair where both allow every pair."""
        left, right = self.left.tiles(query, key), self.right.tiles(query, key)
        return left[0] & right[0], left[1] & right[1]

    def parts(self) -> tuple[Pattern, ...]:
        """The left and the right pattern."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The shorter reach of the two, on each side."""
        return Reach(*map(min, zip(self.left.reach, self.right.reach, strict=True)))

    @property
    def is_band(self) -> bool:
        """True where both patterns are bands."""
        return self.left.is_band and self.right.is_band

    def alternatives(self) -> list[Pattern]:
        """Each alternative of the left pattern with each of the right one."""
        return [left & right for left, right in itertools.product(self.left.alternatives(), self.right.alternatives())]


@dataclasses.dataclass(frozen=True)
class Or(Pattern):
    """Pairs that at least one of the patterns allows."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '|'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) | self.right(query, key)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """Some pair where either pattern allows one; every pair where one pattern alone allows every pair."""
        left, right = self.left.tiles(query, key), self.right.tiles(query, key)
        return left[0] | right[0], left[1] | right[1]

    def parts(self) -> tuple[Pattern, ...]:
        """The left and the right pattern."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The longer reach of the two, on each side."""
        return Reach(*map(max, zip(self.left.reach, self.right.reach, strict=True)))

    def alternatives(self) -> list[Pattern]:
        """The alternatives of the left pattern, then those of the right one."""
        return self.left.alternatives() + self.right.alternatives()


@dataclasses.dataclass(frozen=True)
class Without(Pattern):
    """Pairs that `left` allows and `right` does not."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str] = '-'

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) & ~self.right(query, key)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """Some pair where `left` allows one, `right` not all; every pair where `left` allows all and `right` none."""
        left, right = self.left.tiles(query, key), self.right.tiles(query, key)
        return left[0] & ~right[1], left[1] & ~right[0]

    def parts(self) -> tuple[Pattern, ...]:
        """The left and the right pattern."""
        return self.left, self.right

    @property
    def reach(self) -> Reach:
        """The reach of the left pattern, from which pairs are only taken away."""
        return self.left.reach

    def alternatives(self) -> list[Pattern]:
        """The alternatives of the left pattern, each without the right one."""
        return [part - self.right for part in self.left.alternatives()]


class PerHead(Pattern):
    """A pattern for each of n equal groups of neighbouring query heads."""

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
        """The patterns of the groups of heads, in order."""
        return self.patterns

    @property
    def reach(self) -> Reach:
        """The longest reach of any head, on each side."""
        return Reach(*map(max, zip(*(part.reach for part in self.patterns), strict=True)))

    def for_head(self, head: int, heads: int) -> Pattern:
        """The pattern of the group that the head is in."""
        if heads % len(self.patterns):
            raise InputError(f'{self}: {heads} heads do not divide over {len(self.patterns)} patterns')
        return self.patterns[head * len(self.patterns) // heads].for_head(head, heads)


def head_patterns(pattern: Pattern, heads: int) -> list[Pattern]:
    """The pattern of each of `heads` heads, or one alone where they do not differ."""
    patterns = [pattern.for_head(head, heads) for head in range(heads)]
    return patterns[:1] if len(set(patterns)) == 1 else patterns


def dense_mask(pattern: Pattern, query_length: int, key_length: int, heads: int | None = None) -> np.ndarray:
    """The definition of `pattern` on positions 0, 1, ...: booleans [L, M], or with `heads` [H, L, M]."""
    query_L1, key_1M = np.arange(query_length)[:, None], np.arange(key_length)[None, :]
    pattern = pattern.for_keys(key_length)
    if heads is None:
        return np.asarray(pattern(query_L1, key_1M))
    return np.stack([pattern.for_head(head, heads)(query_L1, key_1M) for head in range(heads)])


def check_sizes(minimum: int, pattern: Pattern, **sizes: int) -> None:
    """Raises an InputError that names the pattern and an argument that is no whole number from `minimum` on."""
    for name, size in sizes.items():
        what = f'{type(pattern).__name__}: {name}'
        require_at_least(minimum, what, size)
        require(size <= LARGEST, what, size, f'at most {LARGEST}')


def pattern_text(pattern: Pattern) -> str:
    """A pattern as one writes it, such as 'causal & window(128)'; without what a layer, head or length fills in."""
    if pattern.sign:
        left, right = (
            f'({pattern_text(part)})' if needs_brackets else pattern_text(part)
            for part, needs_brackets in _operands(pattern)
        )
        return f'{left} {pattern.sign} {right}'
    name = re.sub('(?<=[a-z])(?=[A-Z])', '_', type(pattern).__name__).lower()
    values = [pattern_text(part) for part in pattern.parts()] or _written_fields(pattern)
    return f'{name}({", ".join(values)})' if values else name


def _operands(pattern: Pattern) -> list[tuple[Pattern, bool]]:
    """Both parts of a combination, and whether each stands in brackets: signs of one kind are read from the left."""
    left, right = pattern.parts()
    return [(left, left.sign not in ('', pattern.sign)), (right, right.sign != '')]


def _written_fields(pattern: Pattern) -> list[str]:
    """The fields of a pattern that are no defaults: those without a default as they are, the others by name."""
    written: list[str] = []
    for field in dataclasses.fields(pattern):
        value = getattr(pattern, field.name)
        if field.default is dataclasses.MISSING:
            written += map(str, value) if isinstance(value, tuple) else [str(value)]
        elif field.name not in _FILLED_IN and value != field.default:
            written.append(f'{field.name}={value}')
    return written
