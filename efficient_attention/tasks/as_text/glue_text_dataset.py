"""Turns GLUE tasks into text-to-text pairs, with T5's source texts ('sst2 sentence: ...'), labels as words, and
official metrics.

Source: Raffel et al. 2019, arXiv 1910.10683, section 2.4 and appendix D. As in T5's released code, the texts of a pair
are sorted by their names.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.glue import DIAGNOSTIC, GLUE, IMPLICATION, INFERENCE, glue_sources, glue_task
from efficient_attention.data.examples.labelled_text import LabelledText, numeric_label, read_labelled
from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.data.sources.tables import digest_tables
from efficient_attention.errors import InputError
from efficient_attention.tasks.as_text.scored_text_dataset import (
    ScoredTextDataset,
    parse_label_indices,
    remove_whitespace,
)
from efficient_attention.tasks.metrics.glue import METRICS

SENTENCES, PREMISE = ('sentence1', 'sentence2'), ('premise', 'hypothesis')
# task -> names of its texts, and its labels as words in the order of `GlueTask.labels`; no labels = targets are numbers
FORMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    'cola': (('sentence',), ('unacceptable', 'acceptable')),
    'sst2': (('sentence',), ('negative', 'positive')),
    'mrpc': (SENTENCES, ('not_equivalent', 'equivalent')),
    'qqp': (('question1', 'question2'), ('not_duplicate', 'duplicate')),
    'stsb': (SENTENCES, ()),
    'mnli': (PREMISE, INFERENCE),
    'qnli': (('question', 'sentence'), IMPLICATION),
    'rte': (SENTENCES, IMPLICATION),
    'wnli': (SENTENCES, ('not_entailment', 'entailment')),
    'ax': (PREMISE, INFERENCE),
}
CALLED = {'ax': 'mnli'}  # task name in source texts; the diagnostic set has MNLI's labels and uses MNLI's name
STEPS_PER_POINT = 5  # number of steps of STS-B's scores per point, because T5 writes the scores as multiples of 0.2
NO_NUMBER = -1.0  # value of a generated text that is not a number, lower than every STS-B score


@dataclasses.dataclass(frozen=True)
class GlueTextDataset(ScoredTextDataset[LabelledText]):
    """A GLUE task as text-to-text pairs; `task` is one of `FORMS`."""

    task: str
    # descriptions of broken rows in official files
    faults: list[str] = dataclasses.field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        """Returns the name of the GLUE task, which is the prefix of its score names."""
        return self.task

    @property
    def notes(self) -> list[str]:
        """Returns a warning about broken rows that were left out, if there are any."""
        count = len(self.faults)
        return [f'{self.field}: {count} broken rows were left out, the first: {self.faults[0]}'] if count else []

    @functools.cached_property
    def examples(self) -> Sequence[LabelledText]:
        """Returns the labelled texts in file order; raises InputError if a label is missing."""
        fields: dict[str, Any] = {'format': 'glue', 'name': self.task, self.split: self.files}
        self.faults.clear()
        found = list(read_labelled(ExamplesConfig(problem='classification', **fields), self.split, self.faults))
        for example in found:
            if example.label is None:
                raise self.missing_answer_error(example.file_and_line)
        return found

    def digest(self) -> str:
        """Returns a text that identifies the examples: the task, a hash of the files and the names of TFDS datasets."""
        return ' '.join(['glue', self.task, digest_tables(glue_sources(self.files, self.split))])

    def to_text_pair(self, example: LabelledText) -> TextPair:
        """Returns an example as a source text in T5's form, and a target text with the label as word or number."""
        names, words = FORMS[self.task]
        parts = sorted(zip(names, example.texts, strict=True))
        source = ' '.join([CALLED.get(self.task, self.task), *(f'{name}: {text}' for name, text in parts)])
        target = words[self.index_of_label(example)] if words else format_number(numeric_label(example))
        return TextPair(source, target, example.file_and_line)

    def index_of_label(self, example: LabelledText) -> int:
        """Returns the index of an example's label; raises InputError if the task has no such label."""
        labels = glue_task(self.task).labels
        if example.label not in labels:
            raise InputError(f'{example.file_and_line}: label {example.label!r} is not among {", ".join(labels)}')
        return labels.index(example.label)

    def scores(self, examples: Sequence[LabelledText], texts: Sequence[str]) -> dict[str, float]:
        """Returns the GLUE metrics of the generated texts.

        Mismatched and diagnostic files are scored separately, with the subset's name as suffix.
        """
        found: dict[str, float] = {}
        for subset in dict.fromkeys(example.subset for example in examples):
            rows = [row for row, example in enumerate(examples) if example.subset == subset]
            expected, predicted = self.expected_and_predicted(
                [examples[row] for row in rows], [texts[row] for row in rows]
            )
            names = GLUE['ax' if subset == DIAGNOSTIC else self.task].metrics
            end = f'_{subset}' if subset and self.task != 'ax' else ''
            found |= {f'{name}{end}': METRICS[name](expected, predicted) for name in names}
        return found

    def expected_and_predicted(
        self, examples: Sequence[LabelledText], texts: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the expected and the generated labels as label indices, or as numbers for STS-B."""
        words = FORMS[self.task][1]
        if not words:
            expected = np.array([numeric_label(example) for example in examples])
            return expected, np.array([parse_number(text) for text in texts])
        numbers = np.array([self.index_of_label(example) for example in examples], np.int64)
        return numbers, parse_label_indices(texts, words, numbers)


def make_glue_text_dataset(text: str, field: str, rest: str) -> GlueTextDataset:
    """Returns the GLUE dataset that '<task>:<files>' describes.

    It raises InputError if the task is unknown or no file is named.
    """
    task, _, files = rest.partition(':')
    if task not in FORMS or not files.strip():
        raise InputError(f'{field} has the set {text!r}; it is glue:<task>:<files>, the task one of {", ".join(FORMS)}')
    return GlueTextDataset(text, field, files, task)


def format_number(value: float) -> str:
    """Returns a number as text, rounded to the nearest multiple of 0.2 as in T5."""
    return f'{round(value * STEPS_PER_POINT) / STEPS_PER_POINT:.1f}'


def parse_number(text: str) -> float:
    """Returns the finite number that a text spells, or `NO_NUMBER` if the text spells none."""
    try:
        value = float(remove_whitespace(text))
    except ValueError:
        return NO_NUMBER
    return value if math.isfinite(value) else NO_NUMBER
