"""Predicts several numbers or several labels per row with imported checkpoints; such models are never trained here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.labelled_text import LabelledText
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.one_label import OneLabelProblem
from efficient_attention.tasks.problems.prediction_files import text_fields, write_prediction_json_lines
from efficient_attention.tasks.problems.problem import Feature, Outputs, mean_logits

LIKELY = 0.5  # minimum probability of a predicted label


class MultiOutputProblem(OneLabelProblem[dict[str, float] | None]):
    """A problem with one number per name in `config.labels`: the model's output or the probability of a label.

    The probability is the sigmoid of the output.
    """

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int, *, is_multi_label: bool) -> None:
        """Prepares a problem with several outputs per row.

        With `is_multi_label`, the outputs are labels, and a row may have any number of them.
        """
        super().__init__(config, encoder, length)
        self.labels, self.is_multi_label = config.labels, is_multi_label
        self.metric_names: frozenset[str] = frozenset()

    def label_array(self, example: LabelledText) -> np.ndarray:
        """Always raises InputError, because a file cannot give a row several labels."""
        raise InputError(
            f'{example.file_and_line}: field {self.config.label!r} is {example.label!r}; the model '
            'gives a row several numbers '
            'or labels, which are not scored: leave the column out'
        )

    def predict_from_outputs(
        self, examples: Sequence[LabelledText], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[dict[str, float] | None]:
        """Returns {name: number} for each example, computed from the mean logits over the rows of the example."""
        means = mean_logits(len(examples), features, outputs)
        return [None if logits is None else self._named_outputs(logits) for logits in means]

    def _named_outputs(self, logits: np.ndarray) -> dict[str, float]:
        numbers = scipy.special.expit(logits) if self.is_multi_label else logits
        return dict(zip(self.labels, map(float, numbers), strict=True))

    def score(
        self, examples: Sequence[LabelledText], predictions: Sequence[dict[str, float] | None], split: str
    ) -> dict[str, float]:
        """Returns no scores, because reading an example with a label already raises InputError."""
        del examples, predictions, split
        return {}

    def write_predictions(
        self, examples: Sequence[LabelledText], predictions: Sequence[dict[str, float] | None], split: str, folder: Path
    ) -> list[Path]:
        """Writes one JSON object per example, with its id, its texts and the fields of `prediction_to_python`."""
        answers = [(one, self.prediction_to_python(guess)) for one, guess in zip(examples, predictions, strict=True)]
        rows = [{'id': one.id, **text_fields(one), **answer} for one, answer in answers if answer]
        return [write_prediction_json_lines(rows, split, folder)]

    def prediction_to_python(self, prediction: dict[str, float] | None) -> dict[str, Any] | None:
        """Returns {'scores': {name: number}} for an example; None if the example was left out and has no prediction.

        With labels, there is also 'labels', the names with a probability of at least 0.5.
        """
        if prediction is None:
            return None
        likely = [label for label, probability in prediction.items() if probability >= LIKELY]
        return ({'labels': likely} if self.is_multi_label else {}) | {'scores': prediction}
