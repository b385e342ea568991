"""Generates pairs for toy problems of encoder-decoders: copy, reverse, sort or add up digits.

Each pair is a function of only (seed, its number). Such problems have been used to compare sequence models since
Zaremba and Sutskever 2014, arXiv 1410.4615. Accuracy by length shows whether a model generalises beyond the training
lengths.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from efficient_attention.errors import InputError

PROBLEMS = ('copy', 'reverse', 'sort', 'sum')
FORM = re.compile(
    r'(?P<problem>[a-z]+):(?P<rows>\d{1,9}):(?P<shortest>\d{1,5})-(?P<longest>\d{1,5})(:(?P<seed>\d{1,9}))?'
)
DIGITS = 10


class ToyProblem(NamedTuple):
    """A toy problem with `rows` generated pairs; a source has `shortest` to `longest` digits, and all lengths are
    equally likely."""

    problem: str
    rows: int
    shortest: int
    longest: int
    seed: int = 0


def parse_toy_problem(text: str, field: str) -> ToyProblem:
    """Parses a toy problem of the form '<problem>:<rows>:<shortest>-<longest>[:<seed>]'; an InputError names the config
    field."""
    match = FORM.fullmatch(text)
    if match is None or match['problem'] not in PROBLEMS:
        form = f'toy:<{"|".join(PROBLEMS)}>:<rows>:<shortest>-<longest>[:<seed>]'
        raise InputError(f'{field} has the set {f"toy:{text}"!r}; a toy problem is {form}')
    numbers = [int(match[name] or 0) for name in ('rows', 'shortest', 'longest', 'seed')]
    toy = ToyProblem(match['problem'], *numbers)
    if not (toy.rows and 1 <= toy.shortest <= toy.longest):
        raise InputError(f'{field} has the set {f"toy:{text}"!r}; it needs a row, and 1 <= shortest <= longest')
    return toy


def toy_pairs(toy: ToyProblem) -> Iterator[tuple[str, str]]:
    """Yields the generated sources and targets as texts; spaces separate the digits."""
    for row in range(toy.rows):
        rng = np.random.default_rng((toy.seed, row))
        digits = rng.integers(0, DIGITS, rng.integers(toy.shortest, toy.longest + 1)).tolist()
        yield digits_to_text(digits), digits_to_text(toy_target_digits(toy.problem, digits))


def toy_target_digits(problem: str, digits: Sequence[int]) -> list[int]:
    """Returns the digits of the target; for the problem 'sum', these are the digits of the decimal number."""
    if problem == 'sum':
        return [int(digit) for digit in str(sum(digits))]
    if problem == 'sort':
        return sorted(digits)
    return list(digits) if problem == 'copy' else list(digits)[::-1]


def digits_to_text(digits: Sequence[int]) -> str:
    """Returns digits as a text, separated by spaces."""
    return ' '.join(map(str, digits))
