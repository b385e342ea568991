"""Answers questions by a span of a context: SQuAD 1.1, SQuAD 2.0 and a user's files.

A context that is too long for a row is split into overlapping windows, so nothing is lost. The answer is the exact text
of the context between the first and the last character of the chosen tokens. Token offsets give these characters, so
the alignment step of BERT's code is not needed.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.special_tokens_template import SpecialTokensTemplate, special_tokens_template_of
from efficient_attention.data.examples.squad import Question, drop_misplaced_answers, read_squad
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.sources.json_files import check_unique_ids
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.squad import choose_null_threshold, squad2_scores, squad_scores
from efficient_attention.tasks.problems.answer_candidates import (
    Candidate,
    SpanPrediction,
    rank_candidates,
    write_answers,
)
from efficient_attention.tasks.problems.best_spans import best_spans
from efficient_attention.tasks.problems.encoded_text import (
    EncodedText,
    encoded_texts,
    tokens_in_character_span,
    trimmed_substring,
)
from efficient_attention.tasks.problems.overlong_texts import truncation_notes
from efficient_attention.tasks.problems.problem import Feature, Outputs, Problem
from efficient_attention.tasks.problems.token_windows import max_context_mask, window_spans

SCORES_2 = [f'{part}{name}' for part in ('', 'HasAns_', 'NoAns_', 'best_') for name in ('exact', 'f1')]
THRESHOLD = 'no_answer_threshold'


class QuestionAnswering(Problem[Question, SpanPrediction]):
    """Extractive question answering: predicts the start and end of the answer in each window of the context.

    If a window has no answer, start and end are position 0.

    Besides the arrays in `problem.py`, rows for prediction have:
    - 'offset_start' and 'offset_end', int32 [l]: characters of the context, -1 = not a token of the context.
    - 'is_allowed', bool [l]: whether an answer may start here. A context token is only allowed in the window where it
      has the most context.

    Attributes:
        thresholds: {'no_answer_threshold': the null odds above which there is no answer}, initially 0. On a dev split,
            `score` sets and reports the threshold with the best F1. Predictions for other texts use this threshold.
        notes: warnings about cut or left-out examples, one line each.
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
        if self.max_context_tokens(config.question_length) < 1:
            raise InputError(
                f'data.length is {length}; with examples.question_length {config.question_length} it must be at least '
                f'{config.question_length + self.question_context_template.special_token_count + 1}'
            )

    @functools.cached_property
    def question_context_template(self) -> SpecialTokensTemplate:
        """Returns the template of a row: the special tokens around a question and a window of the context."""
        return special_tokens_template_of(self.encoder, is_pair=True)

    def max_context_tokens(self, question_length: int) -> int:
        """Returns how many tokens of the context fit into a row with a question of `question_length` tokens."""
        return self.length - self.question_context_template.special_token_count - question_length

    def read_examples(self, split: str) -> list[Question]:
        """Returns the questions of a split, in file order.

        Training questions whose answer is not at the recorded position are left out with a note.
        """
        text = {'train': self.config.train, 'test': self.config.test}.get(split, self.config.dev)
        if not text:
            raise InputError(f'examples.{split} is empty; it must name files')
        questions = read_squad(text, is_labelled=split != 'test')
        if split != 'test' and not self.config.has_no_answer:
            check_questions_have_answers(questions)
        if split != 'train':
            check_unique_ids((question.id, question.place) for question in questions)
            return questions
        questions, notes = drop_misplaced_answers(questions)
        self._notes |= {note: note for note in notes}
        return questions

    def encode(self, examples: Sequence[Question], *, is_training: bool = False) -> list[Feature]:
        """Returns the questions as rows of tokens, one row per window of the context.

        Training rows have no arrays for predictions.

        The rows of an example are labelled if its answer is at the recorded position, or if the question has no answer.
        """
        contexts = list(dict.fromkeys(example.context for example in examples))
        encoded = dict(zip(contexts, encoded_texts(self.encoder, contexts), strict=True))
        questions = encoded_texts(self.encoder, [example.question for example in examples])
        self._notes |= truncation_notes(questions, [example.place for example in examples], self.config.question_length)
        features = []
        for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
            label = answer_token_span(example, encoded[example.context]) if has_known_answer(example) else None
            for row in self.window_rows(question, encoded[example.context], label, is_training):
                features.append(row | {'example': np.array(number, np.int32)})
        return features

    def window_rows(
        self, question: EncodedText, context: EncodedText, label: tuple[int, int] | None, is_training: bool
    ) -> Iterator[Feature]:
        """Yields the row of each window over a context, with the question, labels and arrays for predictions.

        `label` is the answer's first and last token, (-1, -1) if there is no answer, None if unknown.
        """
        question_ids = question.ids[: self.config.question_length]
        spans = window_spans(len(context), self.max_context_tokens(len(question_ids)), self.config.stride)
        before = self.question_context_template.second_text_start(len(question_ids))
        is_best = max_context_mask(len(context), spans)
        for (start, stop), is_best_P in zip(spans, is_best, strict=True):
            row = self.question_context_template.row(question_ids, context.ids[start:stop])
            if self.config.has_global:
                row['is_global'] = np.arange(len(row['tokens'])) < before - len(self.question_context_template.fixed[1])
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
        """Returns whether the question has known answers; for SQuAD 2.0 also whether it is known to have none."""
        return bool(example.answers) or (example.answers == () and self.config.has_no_answer)

    def predict_from_outputs(
        self, examples: Sequence[Question], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[SpanPrediction]:
        """Returns the best candidate answers to each question over all windows, and the odds of no answer."""
        found: list[list[Candidate]] = [[] for _ in examples]
        nulls: list[Candidate | None] = [None for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            number = int(feature['example'])
            found[number] += self.window_candidates(examples[number].context, feature, output['logits'])
            null = Candidate('', 0, 0, *output['logits'][0].tolist())
            nulls[number] = min(nulls[number] or null, null, key=lambda candidate: candidate.logit_sum)
        if not self.config.has_no_answer:
            nulls = [None for _ in examples]
        return [
            rank_candidates(candidates, null, self.config.best_count)
            for candidates, null in zip(found, nulls, strict=True)
        ]

    def window_candidates(self, context: str, feature: Feature, logits_L2: np.ndarray) -> Iterator[Candidate]:
        """Yields the best candidate answers of one window."""
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
            begin, end = trimmed_substring(context, start, stop)
            if context[begin:end].strip():
                yield Candidate(context[begin:end], begin, end, *logits)

    def score(
        self, examples: Sequence[Question], predictions: Sequence[SpanPrediction], split: str
    ) -> dict[str, float]:
        """Returns the scores of the official script of SQuAD 1.1, or of SQuAD 2.0 with `has_no_answer`.

        With `chooses_thresholds`, a dev split first sets the threshold with the best F1, so 'f1' equals 'best_f1'.
        """
        golds = [[answer.text for answer in example.answers or ()] for example in examples]
        texts = [prediction.best_answer.text for prediction in predictions]
        if not self.config.has_no_answer:
            return squad_scores(texts, golds)
        odds = [prediction.null_odds or 0.0 for prediction in predictions]
        if self.chooses_thresholds and split in self.dev_splits:
            self.thresholds = {THRESHOLD: choose_null_threshold(texts, golds, odds)}
        report = squad2_scores(texts, golds, odds, threshold=self.thresholds[THRESHOLD])
        return {name: value for name, value in report.items() if not name.endswith('total')} | self.thresholds

    def write_predictions(
        self, examples: Sequence[Question], predictions: Sequence[SpanPrediction], split: str, folder: Path
    ) -> list[Path]:
        """Writes the answers in the files that SQuAD's scripts read; every split has the same file names.

        `write_answers` describes the files.
        """
        del split
        return write_answers([example.id for example in examples], predictions, self.thresholds[THRESHOLD], folder)

    def example_from_python(self, value: Any) -> Question:
        """Returns a question from {'question': text, 'context': text}; raises InputError if it is invalid."""
        if not isinstance(value, dict) or not {'question', 'context'} <= set(value):
            raise InputError("a question is {'question': text, 'context': text}")
        for name in ('question', 'context'):
            if not isinstance(value[name], str) or not value[name].strip():
                raise InputError(f'{name!r} is {value[name]!r}; it must be a text that is not empty')
        texts = {name: value[name] for name in ('question', 'context')}
        return Question(id=str(value.get('id', '')), **texts, place='the question')

    def prediction_to_python(self, prediction: SpanPrediction) -> dict[str, Any]:
        """Returns {'answer', 'score', 'start', 'end'}, in characters of the context; the answer '' = no answer."""
        chosen = prediction.best_or_no_answer(self.thresholds[THRESHOLD])
        return {'answer': chosen.text, 'score': chosen.probability, 'start': chosen.start, 'end': chosen.end}


def check_config(config: ExamplesConfig) -> None:
    """Raises InputError if the config has settings that question answering does not support."""
    if config.format != 'squad':
        raise InputError(f"examples.format is {config.format!r}; 'question_answering' reads 'squad'")
    if config.overlong != 'windows':
        raise InputError(
            f"examples.overlong is {config.overlong!r}; 'question_answering' reads long texts by 'windows'"
        )


def check_questions_have_answers(questions: Sequence[Question]) -> None:
    """Raises InputError if a question has no answer although all questions must have one."""
    for question in questions:
        if question.answers == ():
            raise InputError(f'{question.place}: no answers; questions without one need examples.has_no_answer')


def has_known_answer(example: Question) -> bool:
    """Returns whether the position of a question's answer is known, or the question is known to have no answer."""
    answer = example.training_answer
    return example.answers is not None and (answer is None or example.has_answer_at_start(answer))


def answer_token_span(example: Question, context: EncodedText) -> tuple[int, int]:
    """Returns the first and last token of a question's answer; (-1, -1) if no token of the context covers an answer."""
    answer = example.training_answer
    found = tokens_in_character_span(context.offsets, answer.start, answer.start + len(answer.text)) if answer else None
    return found or (-1, -1)
