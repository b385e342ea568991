"""Classifies texts: predicts one label for a text or a text pair from GLUE, Long Range Arena or a user's own tables."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.glue import DIAGNOSTIC, GLUE
from efficient_attention.data.examples.labelled_text import LabelledText, label_names, read_labelled
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.glue import METRICS, Metric, f1_macro
from efficient_attention.tasks.problems.one_label import (
    MATCHED_SPLIT,
    MISMATCHED_SPLIT,
    OneLabelProblem,
    pair_with_predictions,
)
from efficient_attention.tasks.problems.prediction_files import (
    text_fields,
    write_glue_submissions,
    write_prediction_json_lines,
)
from efficient_attention.tasks.problems.problem import Feature, Outputs, mean_logits

SUFFIXES = {MATCHED_SPLIT: '_matched', MISMATCHED_SPLIT: '_mismatched'}


@dataclasses.dataclass(frozen=True)
class ClassPrediction:
    """The most likely label, and the probability of each label in the order of the model's outputs."""

    label: str
    probabilities: dict[str, float]


class Classification(OneLabelProblem[ClassPrediction | None]):
    """A fine-tuning problem with one label out of several for a text or a text pair.

    If an example was left out, its prediction is None.
    """

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """Finds the labels and the metrics of a classification in the config and the training files."""
        super().__init__(config, encoder, length)
        if self.glue and not self.glue.labels:
            raise InputError(f"examples.name {config.name!r} has numbers for labels; examples.problem is 'regression'")
        self.labels = self._labels()
        self._numbers = {label: number for number, label in enumerate(self.labels)}
        self.metrics = self._metrics()
        suffixes = [SUFFIXES.get(split, '') for split in self.dev_splits] or ['']
        self.metric_names = frozenset(name + suffix for suffix in suffixes for name in self.metrics)
        self.best_metric = next(iter(self.metrics)) + suffixes[0]

    def _labels(self) -> tuple[str, ...]:
        labels = self.config.labels
        if self.glue:
            if labels and set(labels) != set(self.glue.labels):
                known = ', '.join(self.glue.labels)
                raise InputError(f'examples.labels is {", ".join(labels)}; {self.glue.title} has {known}, in any order')
            return labels or self.glue.labels
        if self.arena is not None:
            return labels or self.arena.labels
        if not labels and not self.config.train:
            raise InputError('examples.labels is empty, and examples.train names no file to take labels from')
        labels = labels or label_names(read_labelled(self.config, 'train', []))
        if len(labels) < 2:
            found = f'only the label {labels[0]!r}' if labels else 'no label'
            if self.config.labels:
                advice = 'did you mean examples.label, the column of the labels?'
                raise InputError(f'examples.labels has {found}; a classification needs two; {advice}')
            where = f'examples.train {self.config.train!r}'
            raise InputError(f'{where} has {found}; a classification needs two, there or in examples.labels')
        return labels

    def _metrics(self) -> dict[str, Metric]:
        if self.glue:
            return {name: METRICS[name] for name in self.glue.metrics}
        if self.arena is not None:
            return {'accuracy': METRICS['accuracy']}
        return {'accuracy': METRICS['accuracy'], 'f1': METRICS['f1'] if len(self.labels) == 2 else f1_macro}

    def label_array(self, example: LabelledText) -> np.ndarray:
        """Returns the index of an example's label, int32 []; raises InputError if the label is unknown."""
        if example.label not in self._numbers:
            column = self.glue.label if self.glue else self.config.label
            known = ', '.join(self.labels)
            raise InputError(f'{example.file_and_line}: field {column!r} is {example.label!r}; known labels: {known}')
        return np.array(self._numbers[example.label], np.int32)

    def predict_from_outputs(
        self, examples: Sequence[LabelledText], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[ClassPrediction | None]:
        """Returns the most likely label of each example, from the mean logits over its rows."""
        means = mean_logits(len(examples), features, outputs)
        return [None if logits is None else self._class_prediction(scipy.special.softmax(logits)) for logits in means]

    def _class_prediction(self, probabilities: np.ndarray) -> ClassPrediction:
        named = dict(zip(self.labels, map(float, probabilities), strict=True))
        return ClassPrediction(self.labels[int(np.argmax(probabilities))], named)

    def score(
        self, examples: Sequence[LabelledText], predictions: Sequence[ClassPrediction | None], split: str
    ) -> dict[str, float]:
        """Returns the classification metrics of a split, computed without the examples that were left out.

        Each subset of GLUE's test files is scored separately.
        """
        pairs = pair_with_predictions(examples, predictions)
        if split in self.dev_splits:
            return self._subset_scores(pairs, self.metrics, SUFFIXES.get(split, ''))
        scores: dict[str, float] = {}
        for subset in dict.fromkeys(example.subset for example, _ in pairs):
            metrics = {name: METRICS[name] for name in GLUE['ax'].metrics} if subset == DIAGNOSTIC else self.metrics
            in_subset = [pair for pair in pairs if pair[0].subset == subset]
            scores |= self._subset_scores(in_subset, metrics, f'_{subset}' if subset else '')
        return scores

    def _subset_scores(
        self, pairs: Sequence[tuple[LabelledText, ClassPrediction]], metrics: Mapping[str, Metric], suffix: str
    ) -> dict[str, float]:
        expected = np.array([int(self.label_array(example)) for example, _ in pairs], np.int64)
        predicted = np.array([self._numbers[guess.label] for _, guess in pairs], np.int64)
        return {name + suffix: metric(expected, predicted) for name, metric in metrics.items()}

    def write_predictions(
        self,
        examples: Sequence[LabelledText],
        predictions: Sequence[ClassPrediction | None],
        split: str,
        folder: Path,
    ) -> list[Path]:
        """Writes GLUE's 'test' split as '<task>.tsv', and other splits as JSON lines of id, texts, label and
        probabilities.
        """
        if self.glue and split == 'test':
            return write_glue_submissions(
                self.glue.title, examples, [guess.label if guess else None for guess in predictions], folder
            )
        pairs = zip(examples, predictions, strict=True)
        rows = [{'id': one.id, **text_fields(one), **dataclasses.asdict(guess)} for one, guess in pairs if guess]
        return [write_prediction_json_lines(rows, split, folder)]

    def prediction_to_python(self, prediction: ClassPrediction | None) -> dict[str, Any] | None:
        """Returns {'label', 'score', 'scores': the probability of each label}; None if the example was left out and has
        no prediction."""
        if prediction is None:
            return None
        score = prediction.probabilities[prediction.label]
        return {'label': prediction.label, 'score': score, 'scores': prediction.probabilities}
