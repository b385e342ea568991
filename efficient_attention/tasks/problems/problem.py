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
from efficient_attention.tasks.problems.overlong_texts import OverlongCounts

Example = TypeVar('Example')
Prediction = TypeVar('Prediction')

# A feature holds the arrays of one row before padding, by name. Some arrays exist only for some kinds of heads:
#   'tokens' int32 [l]; for multiple choice [choices, l], zero-padded to l, with 'lengths' int32 [choices]
#   'tokens' is int32 [sentences, l] if a hierarchical model encodes each sentence of a text separately.
#   'token_types' int32, with the shape of 'tokens'
#   'example' int32 []: the index of the row's example in the encoded list
#   The following arrays are labels, which an example without a label lacks:
#     'label' int32 [] (heads 'sequence' and 'choice'), or float32 [] in regression
#     'labels' int32 [l] (head 'token'): the tag of each token, -1 where there is nothing to predict
#     'start', 'end' int32 [] (heads 'span', 'multi_hop'): positions of the first and the last token of the answer
#     'type' int32 [] (head 'multi_hop'): the answer type, 0 = span, 1 = yes, 2 = no
#     'support' float32 [l] (head 'multi_hop'): 1 or 0 = the sentence supports the answer or not, -1 = no marker
#   'is_global' bool [l]: whether each token is global; absent if no token is global
# A problem may add arrays that stay on the host, such as character offsets.
Feature = dict[str, np.ndarray]

# The model outputs of one row, float32 and without padding, by name:
#   'logits': [classes] for the head 'sequence', [l, classes] for 'token', [choices] for 'choice'
#   'logits': [l, 2] for the heads 'span' and 'multi_hop', the start logit and end logit of each token
#   'type' [3] and 'support' [l] for the head 'multi_hop': logits of the answer types and of the sentence markers
Outputs = Mapping[str, np.ndarray]


class Problem(abc.ABC, Generic[Example, Prediction]):
    """The interface of a fine-tuning problem, such as classification; an object is set up for one config."""

    head: str  # required kind of head, see config/head.py
    labels: tuple[str, ...] = ()  # class names in the order of the outputs; () if the outputs are not classes
    metric_names: frozenset[str]  # names of all metrics that `score` returns over all dev splits
    best_metric: str  # the metric that ranks checkpoints
    # whether the best checkpoint has the highest ('max') or the lowest ('min') value of `best_metric`
    best_mode: str = 'max'
    dev_splits: tuple[str, ...] = ('dev',)  # most problems have one dev split; MNLI has two
    chooses_thresholds = True  # whether `score` chooses decision thresholds on a dev split; False once they are chosen

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """Stores the config and the tokenizer; `length` is the largest number of tokens of a row.

        Special tokens count.

        Raises:
            InputError: the config names no files, or has invalid labels.
        """
        self.config, self.encoder, self.length = config, encoder, length
        self._notes: dict[str, str] = {}
        self._window_notes: dict[str, str] = {}
        # decision thresholds, which `score` chooses on a dev split and uses for other splits
        self.thresholds: dict[str, float] = {}

    def mark_global_token(self, feature: Feature) -> Feature:
        """Returns the row with its first token, [CLS], marked as global if the config asks for global tokens."""
        if self.config.has_global:
            feature['is_global'] = np.zeros(feature['tokens'].shape, bool)
            feature['is_global'][..., 0] = True
        return feature

    @property
    def notes(self) -> list[str]:
        """Returns warnings about examples that were cut, left out, broken or split into windows, one line each."""
        return self.dropped_data_notes + list(self._window_notes.values())

    @property
    def dropped_data_notes(self) -> list[str]:
        """Returns the warnings about lost text, without notes about windows, which lose nothing."""
        return list(self._notes.values())

    def note_overlong_rows(self, counts: OverlongCounts) -> None:
        """Adds a note about each file with rows that were too long."""
        (self._window_notes if self.config.overlong == 'windows' else self._notes).update(counts.notes())

    @property
    def head_output_count(self) -> int:
        """Returns the number of outputs per row or token; 1 for regression."""
        return max(len(self.labels), 1)

    @abc.abstractmethod
    def read_examples(self, split: str) -> list[Example]:
        """Returns the examples of 'train', 'test' or one of `dev_splits`, in file order.

        Raises:
            InputError: a file, row or field is bad or missing; the message names all three.
        """

    @abc.abstractmethod
    def encode(self, examples: Sequence[Example], *, is_training: bool = False) -> list[Feature]:
        """Returns the examples as rows of tokens, one or more rows per example, in order.

        With `is_training`, rows that teach nothing may be dropped.

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
        """Returns one prediction per example, from the model outputs of all rows of the example."""

    @abc.abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction], split: str) -> dict[str, float]:
        """Returns the official metrics of the predictions: fractions, or correlations in [-1, 1].

        If there are two dev splits, their metrics have different names.
        """

    @abc.abstractmethod
    def write_predictions(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], split: str, folder: Path
    ) -> list[Path]:
        """Writes predictions into `folder` in the form that official scripts or servers read; returns the paths."""

    @abc.abstractmethod
    def example_from_python(self, value: Any) -> Example:
        """Returns an unlabelled example from Python input of `pipeline`; raises InputError if it is invalid."""

    @abc.abstractmethod
    def prediction_to_python(self, prediction: Prediction) -> Any:
        """Returns a prediction as plain Python values: dicts of str, int, float and lists."""


def mean_logits(examples: int, features: Sequence[Feature], outputs: Sequence[Outputs]) -> list[np.ndarray | None]:
    """Returns the mean logits over the rows of each example, float64; None for an example that was left out and so has
    no rows."""
    sums: list[np.ndarray | None] = [None] * examples
    rows = np.zeros(examples, np.int64)
    for feature, output in zip(features, outputs, strict=True):
        index, logits = int(feature['example']), output['logits'].astype(np.float64)
        before = sums[index]
        sums[index] = logits if before is None else before + logits
        rows[index] += 1
    return [None if total is None else total / count for total, count in zip(sums, rows, strict=True)]
