"""Toy problems of text to text: numbers to copy, to reverse, to sort, or to add up; generated, never read.

Each pair is a function of (seed, its number) alone. The tests by which sequence models are told apart since Zaremba and
Sutskever 2014, arXiv 1410.4615; accuracy by length shows what a model has learnt beyond the lengths it was trained on.
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


class Toy(NamedTuple):
    """A problem with `rows` pairs, whose sources have `shortest` to `longest` digits, each length as likely."""

    problem: str
    rows: int
    shortest: int
    longest: int
    seed: int = 0


def parse_toy(text: str, field: str) -> Toy:
    """The problem of '<problem>:<rows>:<shortest>-<longest>[:<seed>]'; raises InputError, which names `field`."""
    match = FORM.fullmatch(text)
    if match is None or match['problem'] not in PROBLEMS:
        form = f'toy:<{"|".join(PROBLEMS)}>:<rows>:<shortest>-<longest>[:<seed>]'
        raise InputError(f'{field} has the set {f"toy:{text}"!r}; a toy problem is {form}')
    numbers = [int(match[name] or 0) for name in ('rows', 'shortest', 'longest', 'seed')]
    toy = Toy(match['problem'], *numbers)
    if not (toy.rows and 1 <= toy.shortest <= toy.longest):
        raise InputError(f'{field} has the set {f"toy:{text}"!r}; it needs a row, and 1 <= shortest <= longest')
    return toy


def toy_pairs(toy: Toy) -> Iterator[tuple[str, str]]:
    """Sources and targets, digits with spaces between them."""
    for row in range(toy.rows):
        rng = np.random.default_rng((toy.seed, row))
        digits = rng.integers(0, DIGITS, rng.integers(toy.shortest, toy.longest + 1)).tolist()
        yield spaced(digits), spaced(answer(toy.problem, digits))


def answer(problem: str, digits: Sequence[int]) -> list[int]:
    """The digits of the target; of 'sum' those of the decimal number."""
    if problem == 'sum':
        return [int(digit) for digit in str(sum(digits))]
    if problem == 'sort':
        return sorted(digits)
    return list(digits) if problem == 'copy' else list(digits)[::-1]


def spaced(digits: Sequence[int]) -> str:
    """The digits as a text."""
    return ' '.join(map(str, digits))
