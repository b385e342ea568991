"""Which query position may read which key position, independent of any data.

A pattern is a frozen, hashable predicate on positions. It works on NumPy and JAX integer arrays alike, and its shape
is the broadcast shape of its two arguments. Segments and padding are data, so they are never part of a pattern.
"""

import ast
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A predicate on (query position, key position); `&` and `|` combine patterns."""

    def __call__(self, query: Any, key: Any) -> Any:
        """Whether `query` may read `key`: booleans of the broadcast shape of two integer arrays."""
        raise NotImplementedError(f'{type(self).__name__} defines no predicate')

    def __and__(self, other: 'Pattern') -> 'Pattern':
        return And(self, other)

    def __or__(self, other: 'Pattern') -> 'Pattern':
        return Or(self, other)


@dataclasses.dataclass(frozen=True)
class Full(Pattern):
    """Every query reads every key."""

    def __call__(self, query: Any, key: Any) -> Any:
        return (query - key) == (query - key)


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
    """A query reads itself and what comes before it: k <= q."""

    def __call__(self, query: Any, key: Any) -> Any:
        return key <= query


@dataclasses.dataclass(frozen=True)
class And(Pattern):
    """Pairs that both patterns allow."""

    left: Pattern
    right: Pattern

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) & self.right(query, key)


@dataclasses.dataclass(frozen=True)
class Or(Pattern):
    """Pairs that at least one of the patterns allows."""

    left: Pattern
    right: Pattern

    def __call__(self, query: Any, key: Any) -> Any:
        return self.left(query, key) | self.right(query, key)


PATTERNS: dict[str, Callable[..., Pattern]] = {'full': Full, 'causal': Causal}


def parse_pattern(text: str) -> Pattern:
    """The pattern that a text such as 'causal' or 'causal & full' names.

    Raises:
        InputError: the text is no expression of known pattern names, `&`, `|` and numbers.
    """
    try:
        tree = ast.parse(text.strip(), mode='eval').body
    except SyntaxError as error:
        raise InputError(f'attention pattern {text!r} cannot be read at column {error.offset}') from None
    return _build(tree, text)


def _build(node: ast.expr, text: str) -> Pattern:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _build(left, text) & _build(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _build(left, text) | _build(right, text)
        case ast.Name(id=name):
            return _make(name, [], {}, text)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=options):
            values = [_number(value, text) for value in arguments]
            return _make(name, values, {option.arg or '**': _number(option.value, text) for option in options}, text)
    raise InputError(
        f'attention pattern {text!r}: {ast.unparse(node)!r} is neither a pattern nor a combination of patterns'
    )


def _make(name: str, arguments: list[int], options: dict[str, int], text: str) -> Pattern:
    if name not in PATTERNS:
        raise InputError(f'attention pattern {text!r}: unknown name {name!r}; known: {", ".join(sorted(PATTERNS))}')
    try:
        return PATTERNS[name](*arguments, **options)
    except TypeError as error:
        raise InputError(f'attention pattern {text!r}: {error}') from None


def _number(node: ast.expr, text: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise InputError(f'attention pattern {text!r}: {ast.unparse(node)!r} is not a whole number')


def dense_mask(pattern: Pattern, query_length: int, key_length: int) -> np.ndarray:
    """The definition of `pattern` on positions 0, 1, ...: booleans [L, M]."""
    query_L1, key_1M = np.arange(query_length)[:, None], np.arange(key_length)[None, :]
    return np.asarray(pattern(query_L1, key_1M))
