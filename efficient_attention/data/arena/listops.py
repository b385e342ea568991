"""ListOps: nested operations on digits, whose value is the class (Nangia and Bowman 2018, arXiv 1804.06028).

As Long Range Arena draws them (Tay et al. 2020, arXiv 2011.04006): a node above the tenth level is an operator with
probability a quarter and then has 2 to 10 arguments; trees between two lengths are kept, both excluded.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.arena.arena_row import ArenaRow, Generated, SetOptions, is_of_split, row_stream
from efficient_attention.errors import InputError

DIGITS, CLOSE = 10, 14  # words 0 to 9 are the digits, 10 to 13 the operators MIN, MAX, MED and SM
DEEPEST = 10  # the level at which every node is a digit, counted from 1
MOST_ARGUMENTS = 10
OPERATOR_SHARE = 0.25
MOST_TREES = 20_000  # that are drawn for a row; of the original's lengths one in a hundred serves a test row
RANGE = re.compile(r'(\d{1,9})-(\d{1,9})')
BLOCK = 1024  # numbers that are drawn at once


def value_of(operator: int, values: Sequence[int]) -> int:
    """What an operator, by the number of its word, makes of digits: the median of an even number is rounded down."""
    if operator == DIGITS:
        return min(values)
    if operator == DIGITS + 1:
        return max(values)
    if operator == DIGITS + 3:
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def listops_row(seed: int, split: str, index: int, shortest: int, longest: int) -> ArenaRow:
    """Row number `index` of a split: a tree of more than `shortest` and fewer than `longest` words, and its value.

    Raises:
        InputError: hardly any tree has such a length.
    """
    numbers = _numbers(row_stream(seed, split, index))
    for _ in range(MOST_TREES):
        words, value = _tree(numbers, longest)
        if shortest < len(words) < longest:
            text = np.array(words, np.uint16)
            if is_of_split(text, split):
                return ArenaRow((text,), value)
    raise InputError(
        f'listops: none of {MOST_TREES} trees of the split {split!r} has more than {shortest} and fewer than '
        f'{longest} words'
    )


def _numbers(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(BLOCK).tolist()


def _tree(numbers: Iterator[float], longest: int) -> tuple[list[int], int]:
    """The words of a tree and its value; of one that becomes too long some words, at least `longest`."""
    words: list[int] = []
    open_nodes: list[tuple[int, int, list[int]]] = []  # operator, arguments, values so far
    while len(words) < longest:
        number = next(numbers)
        if number < OPERATOR_SHARE and len(open_nodes) < DEEPEST - 1:
            operator = DIGITS + int(4 * number / OPERATOR_SHARE)
            words.append(operator)
            open_nodes.append((operator, 2 + int((MOST_ARGUMENTS - 1) * next(numbers)), []))
            continue
        if len(open_nodes) < DEEPEST - 1:
            number = (number - OPERATOR_SHARE) / (1 - OPERATOR_SHARE)
        value = int(DIGITS * number)
        words.append(value)
        while open_nodes:
            operator, arguments, values = open_nodes[-1]
            values.append(value)
            if len(values) < arguments:
                break
            open_nodes.pop()
            words.append(CLOSE)
            value = value_of(operator, values)
        else:
            return words, value
    return words, 0


@dataclasses.dataclass(frozen=True)
class ListOps(Generated):
    """Trees between two lengths, both excluded."""

    kind = 'listops'
    vocabulary = 'listops'
    shortest: int
    longest: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The ten digits."""
        return tuple(map(str, range(10)))

    def row(self, split: str, index: int) -> ArenaRow:
        """See `Generated`."""
        return listops_row(self.seed, split, index, self.shortest, self.longest)


def listops_set(options: SetOptions) -> ListOps:
    """The set of these options; raises InputError where one is missing or out of range."""
    count, seed = options.number('rows', 1), options.number('seed', 0, 0)
    match = RANGE.fullmatch(options.word('length'))
    if match is None or not 0 <= int(match[1]) < int(match[2]) - 1:
        raise options.fault('length must be <shortest>-<longest>, with a whole number between them')
    if int(match[2]) <= 4:
        raise options.fault('length must let in a tree of at least 4 words: an operator, two digits, a bracket')
    return ListOps(options.text, count, seed, int(match[1]), int(match[2]))
