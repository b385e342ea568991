"""The steps of a fine-tuning problem: files -> examples -> features -> model outputs -> predictions -> official scores.

A problem knows no model and no loop. Everything here is plain Python and NumPy on the host.
"""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.tasks.problems.overlong_texts import LengthCounts

Example = TypeVar('Example')
Prediction = TypeVar('Prediction')

# The arrays of one row before it is padded, by name:
#   'tokens' int32 [l], or [A, l] for multiple choice (each choice padded with 0 up to l, 'lengths' int32 [A] beside it)
#       and [S, l] likewise for a text of S sentences
#   'token_types' int32, shaped as the tokens
#   'example' int32 []: the number of its example in the list that was encoded
#   labels, absent where the example has none:
#     'label' int32 [] ('sequence', 'choice') or float32 [] (regression)
#     'labels' int32 [l] ('token'), -1 where there is nothing to predict
#     'start', 'end' int32 [] ('span', 'multi_hop'): positions of the first and the last token of the answer
#     'type' int32 [] (0 span, 1 yes, 2 no), 'support' float32 [l] (0 or 1, -1 = no sentence marker) ('multi_hop')
#   'is_global' bool [l], absent where no token is
# and arrays that one problem alone has and that stay on the host, such as offsets.
Feature = dict[str, np.ndarray]

# What the model says of one row, without padding, float32, by name: 'logits' [C] ('sequence'), [l, C] ('token'),
# [l, 2] of start and end ('span', 'multi_hop'), [A] ('choice'); 'type' [3] and 'support' [l] ('multi_hop').
Outputs = Mapping[str, np.ndarray]


class Problem(abc.ABC, Generic[Example, Prediction]):
    """One kind of problem, for one config."""

    head: str  # kind of head that it needs, see config/head.py
    labels: tuple[str, ...] = ()  # their names in the order of the outputs; () where the outputs are no classes
    metric_names: frozenset[str]  # of `score`, over all dev splits
    best_metric: str  # the one by which checkpoints are compared ...
    best_mode: str = 'max'  # ... and which way
    dev_splits: tuple[str, ...] = ('dev',)  # MNLI has two
    chooses_thresholds = True  # `score` chooses them on a dev split; False once they are chosen

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """`length`: most tokens of a row, special tokens included.

        Raises:
            InputError: the config names no files, or labels that do not serve.
        """
        self.config, self.encoder, self.length = config, encoder, length
        self._notes: dict[str, str] = {}
        self._window_notes: dict[str, str] = {}
        self.thresholds: dict[str, float] = {}  # what `score` has chosen on a dev split, for predictions on others

    def with_global(self, feature: Feature) -> Feature:
        """The feature with its first token marked as global, [CLS], where the config asks for global tokens."""
        if self.config.has_global:
            feature['is_global'] = np.zeros(feature['tokens'].shape, bool)
            feature['is_global'][..., 0] = True
        return feature

    @property
    def notes(self) -> list[str]:
        """What happened to examples that a user should know (cut, left out, broken, windows), a line each."""
        return self.losses + list(self._window_notes.values())

    @property
    def losses(self) -> list[str]:
        """Those of the notes that tell of a loss; rows that became windows lost nothing."""
        return list(self._notes.values())

    def note_lengths(self, counts: LengthCounts) -> None:
        """Notes what became of rows that were too long."""
        (self._window_notes if self.config.overlong == 'windows' else self._notes).update(counts.notes())

    @property
    def outputs(self) -> int:
        """How many numbers the head gives a row or token; 1 for regression."""
        return max(len(self.labels), 1)

    @abc.abstractmethod
    def read(self, split: str) -> list[Example]:
        """The examples of 'train', one of `dev_splits` or 'test', in the order of the files.

        Raises:
            InputError: a file, row or field is bad or missing; names all three.
        """

    @abc.abstractmethod
    def encode(self, examples: Sequence[Example], *, is_training: bool = False) -> list[Feature]:
        """Rows of tokens, one or more for each example, in order; `is_training` may drop rows that teach nothing.

        Raises:
            InputError: a text is empty or too long, by `config.overlong`; names the example's place.
        """

    @abc.abstractmethod
    def is_labelled(self, example: Example) -> bool:
        """Whether the example has what `score` compares a prediction with."""

    @abc.abstractmethod
    def decode(
        self, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[Prediction]:
        """One prediction for each example, from the outputs of all its features."""

    @abc.abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction], split: str) -> dict[str, float]:
        """The official metrics by name, fractions or correlations in [-1, 1]; names of a second dev split differ."""

    @abc.abstractmethod
    def write(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], split: str, folder: Path
    ) -> list[Path]:
        """Writes the files that the official scripts or servers want into `folder`; returns their paths."""

    @abc.abstractmethod
    def example(self, value: Any) -> Example:
        """An example without label from plain Python, as `pipeline` takes it; raises InputError."""

    @abc.abstractmethod
    def answer(self, prediction: Prediction) -> Any:
        """A prediction as plain Python: dicts of str, int, float and lists."""


def mean_logits(examples: int, features: Sequence[Feature], outputs: Sequence[Outputs]) -> list[np.ndarray | None]:
    """For each example the mean of its rows' logits, float64; None for one without rows, which was left out."""
    sums: list[np.ndarray | None] = [None] * examples
    rows = np.zeros(examples, np.int64)
    for feature, output in zip(features, outputs, strict=True):
        index, logits = int(feature['example']), output['logits'].astype(np.float64)
        before = sums[index]
        sums[index] = logits if before is None else before + logits
        rows[index] += 1
    return [None if total is None else total / count for total, count in zip(sums, rows, strict=True)]
