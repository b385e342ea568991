"""Base classes of arena (long-range) datasets: a row, a dataset of rows, its options, and its random numbers."""

import abc
import dataclasses
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.errors import InputError

BINARY = ('0', '1')
SPLITS = ('train', 'dev', 'test')
NUMBER = re.compile(r'\d{1,9}')
SHARES = 8  # hash buckets of generated rows: the last two are for dev and test, all others for train


class ArenaRow(NamedTuple):
    """A row: one or two texts, each an array of word numbers of a vocabulary, uint16 [l]; and its class number."""

    texts: tuple[np.ndarray, ...]
    label: int


@dataclasses.dataclass(frozen=True)
class ArenaDataset(abc.ABC):
    """A dataset of one kind of rows, with its options.

    Attributes:
        text: the text form of the dataset, from the config.
    """

    text: str
    kind: ClassVar[str]
    vocabulary: ClassVar[str]  # a vocabulary of data/tokenizers/fixed_vocabulary.py
    texts: ClassVar[int] = 1  # texts per row
    is_read: ClassVar[bool] = False  # whether rows come from the original files of the benchmark
    rules: ClassVar[int] = 2  # version of the generator or reader; another version makes different rows

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the names of the classes, by class number."""
        return BINARY

    def digest(self, split: str) -> str:  # noqa: ARG002  `text` identifies generated rows
        """Returns a hash of the files that the dataset reads; '' if it reads no files.

        Raises:
            InputError: a file is missing.
        """
        return ''

    def class_file_counts(self, split: str) -> dict[str, int]:  # noqa: ARG002  most sets have no class folders
        """Returns class -> number of files, if folders name the classes; else {}. Raises InputError as `digest`."""
        return {}

    @abc.abstractmethod
    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the rows of a split in order; raises InputError where a row cannot be read."""


@dataclasses.dataclass(frozen=True)
class GeneratedDataset(ArenaDataset):
    """A dataset of generated rows: each row is a function of the seed, the split and its row number."""

    count: int
    seed: int

    @abc.abstractmethod
    def row(self, split: str, index: int) -> ArenaRow:
        """Returns one row of a split."""

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaDataset`."""
        return (self.row(split, index) for index in range(self.count))


class DatasetOptions:
    """The options in a dataset's text form, which a parser removes one by one."""

    def __init__(self, text: str, field: str, values: Mapping[str, str]) -> None:
        self.text, self.field, self.left = text, field, dict(values)

    def option_error(self, what: str) -> InputError:
        """Returns an error that names the config field, the dataset and the fault."""
        return InputError(f'{self.field} is {self.text!r}; {what}')

    def required_text(self, name: str) -> str:
        """Returns and removes a required option; raises InputError where it is missing."""
        if not self.left.get(name):
            close = difflib.get_close_matches(name, self.left, n=1)
            hint = f'; {close[0]!r} is no option' if close and close[0] != name else ''
            raise self.option_error(f'{name}=... is missing{hint}')
        return self.left.pop(name)

    def integer_option(self, name: str, least: int, default: int | None = None) -> int:
        """Returns and removes an option that must be a whole number of at least `least`."""
        if default is not None and name not in self.left:
            return default
        found = self.required_text(name)
        if not NUMBER.fullmatch(found) or int(found) < least:
            raise self.option_error(f'{name} must be a whole number of at least {least}')
        return int(found)

    def check_no_unknown_option(self) -> None:
        """Raises InputError where an option is left, because the dataset does not know it."""
        if self.left:
            raise self.option_error(f'it has no option {next(iter(self.left))!r}')


def row_random_generator(seed: int, split: str, index: int) -> np.random.Generator:
    """Returns the random generator of one row."""
    return random_stream(seed, RandomStreamId.ARENA_ROW, SPLITS.index(split), index)


def is_hashed_to_split(text: np.ndarray, split: str) -> bool:
    """Whether a generated row belongs to a split; a hash of the row decides, so no two splits share a row."""
    share = hashlib.blake2b(text.astype('<u2').tobytes(), digest_size=1).digest()[0] % SHARES
    held_out = {'dev': SHARES - 2, 'test': SHARES - 1}
    return share == held_out[split] if split in held_out else share < SHARES - 2
