"""Generates ListOps rows: nested operations on digits; the class is the value of the expression (Nangia and Bowman
2018, 1804.06028).

Trees have Long Range Arena's distribution (Tay et al. 2020, arXiv 2011.04006). A node above the tenth level is an
operator with probability 1/4 and then has 2 to 10 arguments. Only trees with a length strictly between two limits are
used.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.arena.dataset_interface import (
    ArenaRow,
    DatasetOptions,
    GeneratedDataset,
    is_hashed_to_split,
    row_random_generator,
)
from efficient_attention.errors import InputError

DIGITS, CLOSE = 10, 14  # Words 0 to 9 are the digits, words 10 to 13 the operators MIN, MAX, MED and SM.
DEEPEST = 10  # depth of the tree, counted from 1, at which every node is a digit
MOST_ARGUMENTS = 10
OPERATOR_SHARE = 0.25
# maximum number of trees sampled for a row; for a test row, about 1 tree in 100 has a length that the benchmark allows
MOST_TREES = 20_000
RANGE = re.compile(r'(\d{1,9})-(\d{1,9})')
BLOCK = 1024  # how many random numbers are generated at once


def evaluate_operator(operator: int, values: Sequence[int]) -> int:
    """Returns the value of an operator (given as a word index) on some digits; rounds down the median of an even number
    of digits."""
    if operator == DIGITS:
        return min(values)
    if operator == DIGITS + 1:
        return max(values)
    if operator == DIGITS + 3:
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def listops_row(seed: int, split: str, index: int, shortest: int, longest: int) -> ArenaRow:
    """Returns a generated row: an expression with more than `shortest` and fewer than `longest` words; the class is its
    value.

    Raises:
        InputError: almost no tree has such a length.
    """
    numbers = _uniform_random_numbers(row_random_generator(seed, split, index))
    for _ in range(MOST_TREES):
        words, value = _random_expression_tree(numbers, longest)
        if shortest < len(words) < longest:
            text = np.array(words, np.uint16)
            if is_hashed_to_split(text, split):
                return ArenaRow((text,), value)
    raise InputError(
        f'listops: none of {MOST_TREES} trees of the split {split!r} has more than {shortest} and fewer than '
        f'{longest} words'
    )


def _uniform_random_numbers(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(BLOCK).tolist()


def _random_expression_tree(numbers: Iterator[float], longest: int) -> tuple[list[int], int]:
    """Returns the words of a random ListOps expression and its value.

    A tree that grows too long is cut, but has at least `longest` words.
    """
    words: list[int] = []
    # The unfinished operators: each with its word, its number of arguments, and the values of its arguments so far.
    open_nodes: list[tuple[int, int, list[int]]] = []
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
            value = evaluate_operator(operator, values)
        else:
            return words, value
    return words, 0


@dataclasses.dataclass(frozen=True)
class ListOps(GeneratedDataset):
    """Generated ListOps expressions whose length is strictly between two limits."""

    kind = 'listops'
    vocabulary = 'listops'
    shortest: int
    longest: int

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names, the digits 0 to 9."""
        return tuple(map(str, range(10)))

    def row(self, split: str, index: int) -> ArenaRow:
        """Returns the row with number `index` of a split."""
        return listops_row(self.seed, split, index, self.shortest, self.longest)


def listops_dataset(options: DatasetOptions) -> ListOps:
    """Returns the ListOps dataset with these options; raises InputError if an option is missing or out of range."""
    count, seed = options.integer_option('rows', 1), options.integer_option('seed', 0, 0)
    match = RANGE.fullmatch(options.required_text('length'))
    if match is None or not 0 <= int(match[1]) < int(match[2]) - 1:
        raise options.option_error('length must be <shortest>-<longest>, with a whole number between them')
    if int(match[2]) <= 4:
        raise options.option_error('length must allow a tree of at least 4 words: an operator, two digits, a bracket')
    return ListOps(options.text, count, seed, int(match[1]), int(match[2]))
