"""Answers to questions as spans of a context: SQuAD 1.1, SQuAD 2.0 and a user's files.

A context that does not fit into a row is read through overlapping windows, so nothing of it is lost. The answer is the
exact text of the context between the first and the last character of the chosen tokens: the tokenizer tells which
characters a token stands for, so the prediction need not be aligned with the text afterwards, as BERT's code had to.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.row_template import RowTemplate, row_template
from efficient_attention.data.examples.squad import Question, read_squad, well_placed
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.sources.json_files import check_identifiers
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.squad import chosen_threshold, squad2_scores, squad_scores
from efficient_attention.tasks.problems.answer_candidates import Candidate, SpanPrediction, ranked, write_answers
from efficient_attention.tasks.problems.best_spans import best_spans
from efficient_attention.tasks.problems.encoded_text import (
    EncodedText,
    characters_of,
    encoded_texts,
    tokens_over,
)
from efficient_attention.tasks.problems.overlong_texts import cut_notes
from efficient_attention.tasks.problems.problem import Feature, Outputs, Problem
from efficient_attention.tasks.problems.windows import maximum_context, windows

SCORES_2 = [f'{part}{name}' for part in ('', 'HasAns_', 'NoAns_', 'best_') for name in ('exact', 'f1')]
THRESHOLD = 'no_answer_threshold'


class QuestionAnswering(Problem[Question, SpanPrediction]):
    """Start and end of the answer, or position 0 for both where a window has none.

    Beside the arrays that `problem.py` names, the rows to predict from have 'offset_start' and 'offset_end', int32
    [l], characters of the context (-1 = no token of it), and 'is_allowed', bool [l], tokens of the context that have
    the most context in this window, where alone an answer may start.

    Attributes:
        thresholds: {'no_answer_threshold': the null odds above which there is no answer}, 0 at first. `score` on a dev
            split sets it to the one with the best F1 and reports it, so that predictions for other texts use it.
        notes: what was cut or left out, a line each.
    """

    head = 'span'

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        super().__init__(config, encoder, length)
        check_config(config)
        self.thresholds: dict[str, float] = {THRESHOLD: 0.0}
        self.best_metric = 'f1'
        names = (
            [*SCORES_2, 'best_exact_thresh', 'best_f1_thresh', THRESHOLD]
            if config.has_no_answer
            else ['exact_match', 'f1']
        )
        self.metric_names = frozenset(names)
        if self.capacity(config.question_length) < 1:
            raise InputError(
                f'data.length is {length}; with examples.question_length {config.question_length} it must be at least '
                f'{config.question_length + self.template.added + 1}'
            )

    @functools.cached_property
    def template(self) -> RowTemplate:
        """The special tokens of a question and a window."""
        return row_template(self.encoder, is_pair=True)

    def capacity(self, question_length: int) -> int:
        """How many tokens of the context fit beside a question."""
        return self.length - self.template.added - question_length

    def read(self, split: str) -> list[Question]:
        """See `Problem`; training questions whose answer is not where the file says are left out with a note."""
        text = {'train': self.config.train, 'test': self.config.test}.get(split, self.config.dev)
        if not text:
            raise InputError(f'examples.{split} is empty; it must name files')
        questions = read_squad(text, is_labelled=split != 'test')
        if split != 'test' and not self.config.has_no_answer:
            check_answered(questions)
        if split != 'train':
            check_identifiers((question.id, question.place) for question in questions)
            return questions
        questions, notes = well_placed(questions)
        self._notes |= {note: note for note in notes}
        return questions

    def encode(self, examples: Sequence[Question], *, is_training: bool = False) -> list[Feature]:
        """See `Problem`; a row for each window. Rows to train on have no arrays for predictions.

        The rows of an example are labelled if its answer, where it has one, stands where it says.
        """
        contexts = list(dict.fromkeys(example.context for example in examples))
        encoded = dict(zip(contexts, encoded_texts(self.encoder, contexts), strict=True))
        questions = encoded_texts(self.encoder, [example.question for example in examples])
        self._notes |= cut_notes(questions, [example.place for example in examples], self.config.question_length)
        features = []
        for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
            label = label_of(example, encoded[example.context]) if has_label(example) else None
            for row in self.rows(question, encoded[example.context], label, is_training):
                features.append(row | {'example': np.array(number, np.int32)})
        return features

    def rows(
        self, question: EncodedText, context: EncodedText, label: tuple[int, int] | None, is_training: bool
    ) -> Iterator[Feature]:
        """The windows over a context; `label`: first and last token of the answer, (-1, -1) = none, None = unknown."""
        question_ids = question.ids[: self.config.question_length]
        spans = windows(len(context), self.capacity(len(question_ids)), self.config.stride)
        before = self.template.second_start(len(question_ids))
        is_best = maximum_context(len(context), spans)
        for (start, stop), is_best_P in zip(spans, is_best, strict=True):
            row = self.template.row(question_ids, context.ids[start:stop])
            if self.config.has_global:
                row['is_global'] = np.arange(len(row['tokens'])) < before - len(self.template.fixed[1])
            if label is not None:
                is_inside = start <= label[0] and label[1] < stop
                for name, token in zip(('start', 'end'), label, strict=True):
                    row[name] = np.array(token - start + before if is_inside else 0, np.int32)
            if not is_training:
                inside = slice(before, before + stop - start)
                row['is_allowed'] = np.zeros(len(row['tokens']), bool)
                row['is_allowed'][inside] = is_best_P[start:stop]
                for column, name in enumerate(('offset_start', 'offset_end')):
                    row[name] = np.full(len(row['tokens']), -1, np.int32)
                    row[name][inside] = context.offsets[start:stop, column]
            yield row

    def is_labelled(self, example: Question) -> bool:
        """See `Problem`; of version 1.1 questions with an answer alone."""
        return bool(example.answers) or (example.answers == () and self.config.has_no_answer)

    def decode(
        self, examples: Sequence[Question], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[SpanPrediction]:
        """See `Problem`; the best candidates over all windows, and the odds that there is no answer."""
        found: list[list[Candidate]] = [[] for _ in examples]
        nulls: list[Candidate | None] = [None for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            number = int(feature['example'])
            found[number] += self.candidates(examples[number].context, feature, output['logits'])
            null = Candidate('', 0, 0, *output['logits'][0].tolist())
            nulls[number] = min(nulls[number] or null, null, key=lambda candidate: candidate.score)
        if not self.config.has_no_answer:
            nulls = [None for _ in examples]
        return [ranked(candidates, null, self.config.best_count) for candidates, null in zip(found, nulls, strict=True)]

    def candidates(self, context: str, feature: Feature, logits_L2: np.ndarray) -> Iterator[Candidate]:
        """The best answers of one window."""
        text_L = np.minimum(feature['offset_start'], 0)
        options = {'answer_length': self.config.answer_length, 'count': self.config.best_count}
        firsts, lasts, _ = best_spans(logits_L2, feature['is_allowed'], text_L, **options)
        columns = (
            feature['offset_start'][firsts],
            feature['offset_end'][lasts],
            logits_L2[firsts, 0],
            logits_L2[lasts, 1],
        )
        for start, stop, *logits in zip(*(column.tolist() for column in columns), strict=True):
            begin, end = characters_of(context, start, stop)
            if context[begin:end].strip():
                yield Candidate(context[begin:end], begin, end, *logits)

    def score(
        self, examples: Sequence[Question], predictions: Sequence[SpanPrediction], split: str
    ) -> dict[str, float]:
        """See `Problem`; the scores of the official script of version 1.1, or of 2.0 with `has_no_answer`.

        Where `chooses_thresholds`, that of a dev split is chosen first, so that 'f1' is 'best_f1'.
        """
        golds = [[answer.text for answer in example.answers or ()] for example in examples]
        texts = [prediction.best.text for prediction in predictions]
        if not self.config.has_no_answer:
            return squad_scores(texts, golds)
        odds = [prediction.null_odds or 0.0 for prediction in predictions]
        if self.chooses_thresholds and split in self.dev_splits:
            self.thresholds = {THRESHOLD: chosen_threshold(texts, golds, odds)}
        report = squad2_scores(texts, golds, odds, threshold=self.thresholds[THRESHOLD])
        return {name: value for name, value in report.items() if not name.endswith('total')} | self.thresholds

    def write(
        self, examples: Sequence[Question], predictions: Sequence[SpanPrediction], split: str, folder: Path
    ) -> list[Path]:
        """See `Problem`; see `write_answers` for the files, which are the same for every split."""
        del split
        return write_answers([example.id for example in examples], predictions, self.thresholds[THRESHOLD], folder)

    def example(self, value: Any) -> Question:
        """See `Problem`; takes {'question': text, 'context': text}."""
        if not isinstance(value, dict) or not {'question', 'context'} <= set(value):
            raise InputError("a question is {'question': text, 'context': text}")
        for name in ('question', 'context'):
            if not isinstance(value[name], str) or not value[name].strip():
                raise InputError(f'{name!r} is {value[name]!r}; it must be a text that is not empty')
        texts = {name: value[name] for name in ('question', 'context')}
        return Question(id=str(value.get('id', '')), **texts, place='the question')

    def answer(self, prediction: SpanPrediction) -> dict[str, Any]:
        """See `Problem`; {'answer', 'score', 'start', 'end'}, characters of the context; '' = there is no answer."""
        chosen = prediction.chosen(self.thresholds[THRESHOLD])
        return {'answer': chosen.text, 'score': chosen.probability, 'start': chosen.start, 'end': chosen.end}


def check_config(config: ExamplesConfig) -> None:
    """Raises InputError where the config asks for what question answering does not do."""
    if config.format != 'squad':
        raise InputError(f"examples.format is {config.format!r}; 'question_answering' reads 'squad'")
    if config.overlong != 'windows':
        raise InputError(
            f"examples.overlong is {config.overlong!r}; 'question_answering' reads long texts by 'windows'"
        )


def check_answered(questions: Sequence[Question]) -> None:
    """Raises InputError where a question has no answer."""
    for question in questions:
        if question.answers == ():
            raise InputError(f'{question.place}: no answers; questions without one need examples.has_no_answer')


def has_label(example: Question) -> bool:
    """Whether it is known where the answer stands, or that there is none."""
    answer = example.training_answer
    return example.answers is not None and (answer is None or example.is_placed(answer))


def label_of(example: Question, context: EncodedText) -> tuple[int, int]:
    """The first and the last token of the answer; (-1, -1) where there is none, or no token of it."""
    answer = example.training_answer
    found = tokens_over(context.offsets, answer.start, answer.start + len(answer.text)) if answer else None
    return found or (-1, -1)
