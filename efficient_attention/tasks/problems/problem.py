"""The steps of a fine-tuning problem: files -> examples -> features -> model outputs -> predictions -> official scores.

A problem does not depend on the model or the training loop. Everything here is plain Python and NumPy on the host.
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

# The arrays of one row before padding, by name:
#   'tokens' int32 [l], or [A, l] for multiple choice (each choice padded with 0 to l, plus 'lengths' int32 [A]),
#       or likewise [S, l] for a text of S sentences
#   'token_types' int32, shaped as the tokens
#   'example' int32 []: the index of its example in the encoded list
#   labels, absent if the example has none:
#     'label' int32 [] ('sequence', 'choice') or float32 [] (regression)
#     'labels' int32 [l] ('token'), -1 where there is nothing to predict
#     'start', 'end' int32 [] ('span', 'multi_hop'): positions of the first and the last token of the answer
#     'type' int32 [] (0 span, 1 yes, 2 no), 'support' float32 [l] (0 or 1, -1 = no sentence marker) ('multi_hop')
#   'is_global' bool [l], absent if no token is global
# and arrays of a single problem that stay on the host, such as offsets.
Feature = dict[str, np.ndarray]

# The model outputs of one row, without padding, float32, by name: 'logits' [C] ('sequence'), [l, C] ('token'),
# [l, 2] of start and end ('span', 'multi_hop'), [A] ('choice'); 'type' [3] and 'support' [l] ('multi_hop').
Outputs = Mapping[str, np.ndarray]


class Problem(abc.ABC, Generic[Example, Prediction]):
    """A kind of fine-tuning problem, set up for one config."""

    head: str  # required kind of head, see config/head.py
    labels: tuple[str, ...] = ()  # class names in the order of the outputs; () if the outputs are not classes
    metric_names: frozenset[str]  # names that `score` returns, over all dev splits
    best_metric: str  # the metric that compares checkpoints ...
    best_mode: str = 'max'  # ... and whether higher ('max') or lower ('min') is better
    dev_splits: tuple[str, ...] = ('dev',)  # MNLI has two dev splits
    chooses_thresholds = True  # whether `score` chooses thresholds on a dev split; False once they are chosen

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """Stores config and encoder; `length` is the most tokens of a row, special tokens included.

        Raises:
            InputError: the config names no files, or has invalid labels.
        """
        self.config, self.encoder, self.length = config, encoder, length
        self._notes: dict[str, str] = {}
        self._window_notes: dict[str, str] = {}
        self.thresholds: dict[str, float] = {}  # chosen by `score` on a dev split, used for other splits

    def mark_global_token(self, feature: Feature) -> Feature:
        """Returns the feature with its first token, [CLS], marked as global if the config asks for global tokens."""
        if self.config.has_global:
            feature['is_global'] = np.zeros(feature['tokens'].shape, bool)
            feature['is_global'][..., 0] = True
        return feature

    @property
    def notes(self) -> list[str]:
        """Warnings about examples that were cut, left out, broken or split into windows, one line each."""
        return self.dropped_data_notes + list(self._window_notes.values())

    @property
    def dropped_data_notes(self) -> list[str]:
        """The notes about lost text, without the notes about windows, which lose nothing."""
        return list(self._notes.values())

    def note_lengths(self, counts: LengthCounts) -> None:
        """Adds notes about rows that were too long."""
        (self._window_notes if self.config.overlong == 'windows' else self._notes).update(counts.notes())

    @property
    def head_output_count(self) -> int:
        """The number of outputs per row or token; 1 for regression."""
        return max(len(self.labels), 1)

    @abc.abstractmethod
    def read_examples(self, split: str) -> list[Example]:
        """Returns the examples of 'train', 'test' or one of `dev_splits`, in file order.

        Raises:
            InputError: a file, row or field is bad or missing; the message names all three.
        """

    @abc.abstractmethod
    def encode(self, examples: Sequence[Example], *, is_training: bool = False) -> list[Feature]:
        """Returns rows of tokens, one or more per example, in order; `is_training` may drop rows that teach nothing.

        Raises:
            InputError: a text is empty, or too long by `config.overlong`; the message names the example's location.
        """

    @abc.abstractmethod
    def is_labelled(self, example: Example) -> bool:
        """Returns whether the example has a label that `score` can compare a prediction with."""

    @abc.abstractmethod
    def predict_from_outputs(
        self, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[Prediction]:
        """Returns one prediction per example, from the outputs of all its features."""

    @abc.abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction], split: str) -> dict[str, float]:
        """Returns the official metrics, fractions or correlations in [-1, 1]; names differ between two dev splits."""

    @abc.abstractmethod
    def write_predictions(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], split: str, folder: Path
    ) -> list[Path]:
        """Writes the files that the official scripts or servers expect into `folder`; returns their paths."""

    @abc.abstractmethod
    def example_from_python(self, value: Any) -> Example:
        """Returns an unlabelled example from plain Python input of `pipeline`; raises InputError if it is invalid."""

    @abc.abstractmethod
    def prediction_to_python(self, prediction: Prediction) -> Any:
        """Returns a prediction as plain Python: dicts of str, int, float and lists."""


def mean_logits(examples: int, features: Sequence[Feature], outputs: Sequence[Outputs]) -> list[np.ndarray | None]:
    """Returns the mean logits of each example over its rows, float64; None for an example without rows."""
    sums: list[np.ndarray | None] = [None] * examples
    rows = np.zeros(examples, np.int64)
    for feature, output in zip(features, outputs, strict=True):
        index, logits = int(feature['example']), output['logits'].astype(np.float64)
        before = sums[index]
        sums[index] = logits if before is None else before + logits
        rows[index] += 1
    return [None if total is None else total / count for total, count in zip(sums, rows, strict=True)]
