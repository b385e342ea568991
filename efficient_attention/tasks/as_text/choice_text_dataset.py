"""Turns multiple-choice questions into text-to-text pairs: the source has question, choices and context, the target
names a choice.

The choices are named 'choice1', 'choice2' and so on. The form is T5's form of COPA (Raffel et al. 2019, arXiv
1910.10683, appendix D): 'choice1: ... choice2: ...'. The
metric is accuracy.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.multiple_choice import ChoiceQuestion, read_choices
from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.data.sources.tables import digest_tables, expand_table_names
from efficient_attention.errors import InputError
from efficient_attention.tasks.as_text.scored_text_dataset import NO_LABEL, ScoredTextDataset, parse_label_indices
from efficient_attention.tasks.metrics.glue import accuracy

FORMATS = ('swag', 'race', 'table')


@dataclasses.dataclass(frozen=True)
class ChoiceTextDataset(ScoredTextDataset[ChoiceQuestion]):
    """A multiple-choice dataset as text-to-text pairs.

    Attributes:
        format: 'swag', 'race' or 'table'.
        columns: for a table, the text column and, if there is one, the question column.
    """

    format: str
    columns: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Returns the prefix of the dataset's score names: its format, or 'choices' for a table."""
        return 'choices' if self.format == 'table' else self.format

    @functools.cached_property
    def examples(self) -> Sequence[ChoiceQuestion]:
        """Returns the questions in file order; raises InputError if a question has no answer."""
        columns = dict(zip(('text', 'text_pair'), self.columns, strict=False))
        fields: dict[str, Any] = {'format': self.format, self.split: self.files, **columns}
        found = list(read_choices(ExamplesConfig(problem='multiple_choice', **fields), self.split))
        for question in found:
            if question.answer is None:
                raise self.missing_answer_error(question.file_and_line)
        return found

    def digest(self) -> str:
        """Returns a text that identifies the examples: hashes of the files, the format and the columns."""
        return ' '.join(['choices', self.format, digest_tables(expand_table_names(self.files)), *self.columns])

    def to_text_pair(self, example: ChoiceQuestion) -> TextPair:
        """Returns a question as a source text with choices and context, and a target text that names the right choice.

        The context comes last, so truncating a long source only cuts the end of the context.
        """
        question = [f'question: {example.question}'] if example.question else []
        choices = [f'{choice_name(number)}: {choice}' for number, choice in enumerate(example.choices)]
        source = ' '.join([self.name, *question, *choices, f'context: {example.context}'])
        return TextPair(source, choice_name(example.answer or 0), example.file_and_line)

    def scores(self, examples: Sequence[ChoiceQuestion], texts: Sequence[str]) -> dict[str, float]:
        """Returns the accuracy of the generated texts: the share that names the right choice."""
        expected = np.array([example.answer for example in examples], np.int64)
        words = [choice_name(number) for number in range(max([3, *(len(example.choices) for example in examples)]))]
        predicted = parse_label_indices(texts, words, np.full_like(expected, NO_LABEL))
        return {'accuracy': accuracy(expected, predicted)}


def make_choice_text_dataset(text: str, field: str, rest: str) -> ChoiceTextDataset:
    """Returns the dataset that '<format>:<files>[#<text column>[,<question column>]]' describes.

    Raises:
        InputError: the text does not have this form, or names columns for a format other than 'table'.
    """
    form, _, place = rest.partition(':')
    files, _, names = place.partition('#')
    columns = tuple(name.strip() for name in names.split(',')) if names else ()
    if form not in FORMATS or not files.strip() or not all(columns) or len(columns) > 2:
        known = f'choices:<{"|".join(FORMATS)}>:<files>, a table also with #<text column>[,<question column>]'
        raise InputError(f'{field} has the set {text!r}; it is {known}')
    if columns and form != 'table':
        raise InputError(f'{field} has the set {text!r}; only choices:table has columns to name')
    return ChoiceTextDataset(text, field, files, form, columns)


def choice_name(number: int) -> str:
    """Returns the name of a choice in sources and targets; choice number 0 is 'choice1'."""
    return f'choice{number + 1}'
