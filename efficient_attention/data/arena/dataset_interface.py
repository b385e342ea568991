"""Defines the base classes of Long Range Arena datasets: a row, a dataset of rows, the options of a dataset, and random
numbers per row."""

import abc
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.errors import InputError, nearest

BINARY = ('0', '1')
SPLITS = ('train', 'dev', 'test')
NUMBER = re.compile(r'\d{1,9}')
SHARES = 8  # Generated rows are hashed to 8 buckets: one for dev, one for test, the other six for train.


class ArenaRow(NamedTuple):
    """One labelled example: one or two texts, each an array of word indices in a vocabulary (uint16 [l]), and a class
    number."""

    texts: tuple[np.ndarray, ...]
    label: int


@dataclasses.dataclass(frozen=True)
class ArenaDataset(abc.ABC):
    """Base class of Long Range Arena datasets; each yields the labelled rows of the splits train, dev and test.

    Attributes:
        text: the dataset's text in the config, such as 'listops:rows=2000:length=500-2000'.
    """

    text: str
    kind: ClassVar[str]
    vocabulary: ClassVar[str]  # name of a vocabulary in data/tokenizers/fixed_vocabulary.py
    texts: ClassVar[int] = 1  # texts per row
    is_read: ClassVar[bool] = False  # whether rows are read from the original files of the benchmark
    rules: ClassVar[int] = 2  # version of the generator or file reader; increased whenever the rows change

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the names of the classes; a name's index is its class number."""
        return BINARY

    def digest(self, split: str) -> str:  # noqa: ARG002  `text` identifies generated rows
        """Returns a hash of the files that the dataset reads; an empty string if it reads no files.

        Raises:
            InputError: a file is missing.
        """
        return ''

    def class_file_counts(self, split: str) -> dict[str, int]:  # noqa: ARG002  most sets have no class folders
        """Returns class name -> number of files, if the class of a file is the name of its folder; otherwise {}. Raises
        InputError as `digest` does."""
        return {}

    @abc.abstractmethod
    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the rows of a split in order; raises InputError if a row cannot be read."""


@dataclasses.dataclass(frozen=True)
class GeneratedDataset(ArenaDataset):
    """A dataset of generated rows; each row is a function of only the seed, the split and the row's number."""

    count: int
    seed: int

    @abc.abstractmethod
    def row(self, split: str, index: int) -> ArenaRow:
        """Returns the row with number `index` of a split."""

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns all rows of a split in order, generated one by one."""
        return (self.row(split, index) for index in range(self.count))


class DatasetOptions:
    """The options of a dataset, such as rows=2000:seed=0; each option is removed when it is read, so that unknown
    options remain."""

    def __init__(self, text: str, field: str, values: Mapping[str, str]) -> None:
        self.text, self.field, self.left = text, field, dict(values)

    def option_error(self, what: str) -> InputError:
        """Returns an InputError that names the config field, the dataset and the mistake."""
        return InputError(f'{self.field} is {self.text!r}; {what}')

    def required_text(self, name: str) -> str:
        """Returns and removes a required option; raises InputError if it is missing."""
        if not self.left.get(name):
            close = nearest(name, self.left)
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
        """Raises InputError if an option remains unread, because the dataset does not know it."""
        if self.left:
            raise self.option_error(f'it has no option {next(iter(self.left))!r}')


def row_random_generator(seed: int, split: str, index: int) -> np.random.Generator:
    """Returns a random generator for one row; it depends on only the seed, the split and the row's number."""
    return random_stream(seed, RandomStreamId.ARENA_ROW, SPLITS.index(split), index)


def is_hashed_to_split(text: np.ndarray, split: str) -> bool:
    """Whether a generated row belongs to a split; a hash of the row's content decides, so that no row is in two
    splits."""
    share = hashlib.blake2b(text.astype('<u2').tobytes(), digest_size=1).digest()[0] % SHARES
    held_out = {'dev': SHARES - 2, 'test': SHARES - 1}
    return share == held_out[split] if split in held_out else share < SHARES - 2
