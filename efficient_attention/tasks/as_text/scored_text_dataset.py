"""Defines the interface of text-to-text datasets whose generated texts are scored by the official metrics of their
task."""

import abc
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.errors import InputError

Example = TypeVar('Example')
# config field -> split that the file readers read; 'test' for other fields
SPLITS = {'pairs.train': 'train', 'pairs.held_out': 'dev'}
NO_LABEL = -1  # label index of a generated text that matches no label, if there are three or more labels


@dataclasses.dataclass(frozen=True)
class ScoredTextDataset(abc.ABC, Generic[Example]):
    """A labelled dataset as text-to-text pairs, with official scores for generated texts.

    `read_pairs` and `digest` have the same meaning as in `PairDataset`.

    Attributes:
        text: the config text that describes the dataset.
        field: the config field with this text, for messages.
        files: a path or glob, or several separated by commas.
    """

    text: str
    field: str
    files: str

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Returns the prefix of the dataset's score names; datasets with the same prefix are scored together."""

    @functools.cached_property
    @abc.abstractmethod
    def examples(self) -> Sequence[Example]:
        """Returns the examples in file order; raises InputError if a file is bad or a label is missing."""

    @abc.abstractmethod
    def to_text_pair(self, example: Example) -> TextPair:
        """Returns an example as a source text and a target text."""

    @abc.abstractmethod
    def digest(self) -> str:
        """Returns a text that identifies the examples: hashes of the files, and how the files are read."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
        """Returns the official metrics of the task, from the text that was generated for each example."""

    @property
    def split(self) -> str:
        """Returns the name of the split that is read from labelled files: 'train', 'dev' or 'test'."""
        return SPLITS.get(self.field, 'test')

    @property
    def notes(self) -> list[str]:
        """Returns warnings about the rows of the files, one line each."""
        return []

    def read_pairs(self) -> Iterator[TextPair]:
        """Yields the examples as pairs of source text and target text."""
        return map(self.to_text_pair, self.examples)

    def missing_answer_error(self, where: str) -> InputError:
        """Returns the error to raise for an example without a label."""
        return InputError(f'{where}: no label or answer, which {self.field} needs to train on or to score by')


def parse_label_indices(texts: Sequence[str], words: Sequence[str], expected: np.ndarray) -> np.ndarray:
    """Returns the label index of each generated text, int64 [examples]; a text that matches no label counts as wrong.

    With two labels, such a text gets the index of the wrong label, as in T5's `f1_score_with_invalid`. So no metric
    gains from an invalid text. With three or more labels, such a text gets the index `NO_LABEL`. Spaces are ignored,
    because some tokenizers put spaces around punctuation.

    Args:
        texts: the generated texts.
        words: the labels as words, by index.
        expected: the indices of the right labels.
    """
    known = {remove_whitespace(word): number for number, word in enumerate(words)}
    others = 1 - expected if len(words) == 2 else np.full(len(expected), NO_LABEL)
    pairs = zip(texts, others.tolist(), strict=True)
    return np.array([known.get(remove_whitespace(text), other) for text, other in pairs], np.int64)


def remove_whitespace(text: str) -> str:
    """Returns a text without spaces, tabs and line ends."""
    return ''.join(text.split())
