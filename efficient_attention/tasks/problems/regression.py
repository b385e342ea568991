"""Regression: predicts a number for a text or a text pair, for STS-B and a user's own tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.labelled_text import LabelledText, numeric_label
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.glue import METRICS
from efficient_attention.tasks.problems.one_label import OneLabelProblem, pair_with_predictions
from efficient_attention.tasks.problems.prediction_files import (
    text_fields,
    write_glue_submissions,
    write_prediction_json_lines,
)
from efficient_attention.tasks.problems.problem import Feature, Outputs, mean_logits

HIGHEST_SCORE = 5.0  # the highest score of STS-B


class Regression(OneLabelProblem[float | None]):
    """A fine-tuning problem with a number as the label of a text or a text pair."""

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """Finds the metrics of a regression in the config; raises InputError if the GLUE task has classes."""
        super().__init__(config, encoder, length)
        if self.glue and self.glue.labels:
            raise InputError(f"examples.name {config.name!r} has classes; examples.problem is 'classification'")
        names = self.glue.metrics if self.glue else ('spearman', 'pearson', 'mean_squared_error')
        self.metrics = {name: METRICS[name] for name in names}
        self.metric_names = frozenset(names)
        self.best_metric = names[0]

    def label_array(self, example: LabelledText) -> np.ndarray:
        """Returns the number that labels an example, float32 []."""
        return np.array(numeric_label(example), np.float32)

    def predict_from_outputs(
        self, examples: Sequence[LabelledText], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[float | None]:
        """Returns the predicted number of each example, the mean over its rows."""
        means = mean_logits(len(examples), features, outputs)
        return [None if logits is None else float(logits[0]) for logits in means]

    def score(
        self, examples: Sequence[LabelledText], predictions: Sequence[float | None], split: str
    ) -> dict[str, float]:
        """Returns the regression metrics of a split, computed without the examples that were left out."""
        del split  # `split` is unused, because no regression task has two dev splits.
        pairs = pair_with_predictions(examples, predictions)
        expected = np.array([numeric_label(example) for example, _ in pairs], np.float64)
        predicted = np.array([guess for _, guess in pairs], np.float64)
        return {name: metric(expected, predicted) for name, metric in self.metrics.items()}

    def write_predictions(
        self, examples: Sequence[LabelledText], predictions: Sequence[float | None], split: str, folder: Path
    ) -> list[Path]:
        """Writes the predicted numbers: STS-B's 'test' split as 'STS-B.tsv', other splits as JSON lines.

        Numbers in 'STS-B.tsv' are clipped to [0, 5]. A JSON line has id, texts and label.
        """
        if self.glue and split == 'test':
            values = [None if guess is None else f'{np.clip(guess, 0, HIGHEST_SCORE):.3f}' for guess in predictions]
            return write_glue_submissions(self.glue.title, examples, values, folder)
        pairs = zip(examples, predictions, strict=True)
        rows = [{'id': one.id, **text_fields(one), 'label': guess} for one, guess in pairs if guess is not None]
        return [write_prediction_json_lines(rows, split, folder)]

    def prediction_to_python(self, prediction: float | None) -> dict[str, Any] | None:
        """Returns {'score': the predicted number}; None if the example was left out and has no prediction."""
        return None if prediction is None else {'score': prediction}
