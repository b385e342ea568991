"""The interface of a set of pairs whose targets are answers that a task's own metrics score."""

import abc
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from efficient_attention.data.pairs.pair_sets import TextPair
from efficient_attention.errors import InputError

Example = TypeVar('Example')
SPLITS = {'pairs.train': 'train', 'pairs.held_out': 'dev'}  # of the readers; any other field is a test split
NO_LABEL = -1  # the number of an answer that is none of three or more labels


@dataclasses.dataclass(frozen=True)
class ScoredSet(abc.ABC, Generic[Example]):
    """Labelled examples as pairs: `read` and `digest` as those of `PairSet`.

    Attributes:
        text: of the set in the config.
        field: of the config, for messages.
        files: a path or glob, several with commas.
    """

    text: str
    field: str
    files: str

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What the names of its scores begin with; sets of one name are scored together."""

    @functools.cached_property
    @abc.abstractmethod
    def examples(self) -> Sequence[Example]:
        """The examples in their order; raises InputError where a file does not serve or a label is missing."""

    @abc.abstractmethod
    def pair(self, example: Example) -> TextPair:
        """An example as a source and a target."""

    @abc.abstractmethod
    def digest(self) -> str:
        """What the examples follow from: the content of the files, and how they are read."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
        """The task's official metrics of what was written for each example."""

    @property
    def split(self) -> str:
        """'train', 'dev' or 'test', as the readers of labelled files know them."""
        return SPLITS.get(self.field, 'test')

    @property
    def notes(self) -> list[str]:
        """What happened to the files' rows that a user should know, a line each."""
        return []

    def read(self) -> Iterator[TextPair]:
        """The examples as pairs."""
        return map(self.pair, self.examples)

    def no_answer(self, where: str) -> InputError:
        """What to raise about an example that cannot be scored."""
        return InputError(f'{where}: no label or answer, which {self.field} needs to train on or to score by')


def label_numbers(texts: Sequence[str], words: Sequence[str], expected: np.ndarray) -> np.ndarray:
    """The numbers of the labels that were written, int64; a text that is no label counts as wrong.

    Of two labels it counts as the wrong one, as T5's scores have it (`f1_score_with_invalid`), so that no metric gains
    by it; of more as a label of its own, `NO_LABEL`. Spaces do not count: some tokenizers put them around marks.

    Args:
        texts: what was written.
        words: the labels, by number.
        expected: the numbers of the right labels.
    """
    known = {without_spaces(word): number for number, word in enumerate(words)}
    others = 1 - expected if len(words) == 2 else np.full(len(expected), NO_LABEL)
    pairs = zip(texts, others.tolist(), strict=True)
    return np.array([known.get(without_spaces(text), other) for text, other in pairs], np.int64)


def without_spaces(text: str) -> str:
    """A text's characters without spaces, tabs and line ends."""
    return ''.join(text.split())
