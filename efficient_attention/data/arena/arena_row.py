"""A row of a long-range task, a set of such rows and its options, the splits, and a generated row's random numbers."""

import abc
import dataclasses
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from efficient_attention.data.batching.random_streams import Stream, random_stream
from efficient_attention.errors import InputError

BINARY = ('0', '1')
SPLITS = ('train', 'dev', 'test')
NUMBER = re.compile(r'\d{1,9}')
SHARES = 8  # of all rows that there are: the last two are dev's and test's, the others train's


class ArenaRow(NamedTuple):
    """A row's texts, one or two, each as numbers of words of a vocabulary, uint16 [l]; and the number of its class."""

    texts: tuple[np.ndarray, ...]
    label: int


@dataclasses.dataclass(frozen=True)
class ArenaSet(abc.ABC):
    """One kind of rows with its options.

    Attributes:
        text: what was asked for.
    """

    text: str
    kind: ClassVar[str]
    vocabulary: ClassVar[str]  # of data/tokenizers/fixed.py
    texts: ClassVar[int] = 1  # of a row
    is_read: ClassVar[bool] = False  # from files of the original
    rules: ClassVar[int] = 2  # version of its generator or reader; another version makes other rows

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return BINARY

    def digest(self, split: str) -> str:  # noqa: ARG002  `text` identifies generated rows
        """A hash of the files that are read; '' if the set reads no files.

        Raises:
            InputError: what is to be read is missing.
        """
        return ''

    def classes(self, split: str) -> dict[str, int]:  # noqa: ARG002  most sets have no class folders
        """The number of files per class, if folders name the classes; else {}. Raises InputError as `digest`."""
        return {}

    @abc.abstractmethod
    def rows(self, split: str) -> Iterator[ArenaRow]:
        """The rows of a split in order; raises InputError where one cannot be read."""


@dataclasses.dataclass(frozen=True)
class Generated(ArenaSet):
    """Rows that each follow from the seed, the split and their number."""

    count: int
    seed: int

    @abc.abstractmethod
    def row(self, split: str, index: int) -> ArenaRow:
        """One row of a split."""

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        return (self.row(split, index) for index in range(self.count))


class SetOptions:
    """The options of a set's text, taken one by one."""

    def __init__(self, text: str, field: str, values: Mapping[str, str]) -> None:
        self.text, self.field, self.left = text, field, dict(values)

    def fault(self, what: str) -> InputError:
        """One line that names the field, the set and what is wrong in it."""
        return InputError(f'{self.field} is {self.text!r}; {what}')

    def word(self, name: str) -> str:
        """A text that must be there."""
        if not self.left.get(name):
            close = difflib.get_close_matches(name, self.left, n=1)
            hint = f'; {close[0]!r} is no option' if close and close[0] != name else ''
            raise self.fault(f'{name}=... is missing{hint}')
        return self.left.pop(name)

    def number(self, name: str, least: int, default: int | None = None) -> int:
        """A whole number of at least `least`."""
        if default is not None and name not in self.left:
            return default
        found = self.word(name)
        if not NUMBER.fullmatch(found) or int(found) < least:
            raise self.fault(f'{name} must be a whole number of at least {least}')
        return int(found)

    def end(self) -> None:
        """Raises InputError where an option is left over."""
        if self.left:
            raise self.fault(f'it has no option {next(iter(self.left))!r}')


def row_stream(seed: int, split: str, index: int) -> np.random.Generator:
    """The random numbers of one row."""
    return random_stream(seed, Stream.ARENA_ROW, SPLITS.index(split), index)


def is_of_split(text: np.ndarray, split: str) -> bool:
    """Whether a generated row may come in this split: by a hash of it, so that no two splits share a row."""
    share = hashlib.blake2b(text.astype('<u2').tobytes(), digest_size=1).digest()[0] % SHARES
    held_out = {'dev': SHARES - 2, 'test': SHARES - 1}
    return share == held_out[split] if split in held_out else share < SHARES - 2
