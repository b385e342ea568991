"""Questions over several paragraphs in one long row: predicts the answer, its type and its supporting sentences.

A row is '[CLS] question [SEP]' and then the paragraphs, '[unused1] title [unused2] sentence [unused2] sentence ...',
'[SEP]'. The output at a sentence's marker says whether the sentence supports the answer. With `examples.has_global`,
the first token, the question and the markers are global, as in Longformer's set-up for HotpotQA (Beltagy et al. 2020,
2004.05150, D.1).
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.hotpotqa import MultiHopQuestion, SentenceId, parse_paragraphs, read_hotpotqa
from efficient_attention.data.examples.special_tokens_template import SpecialTokensTemplate, special_tokens_template_of
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.sources.json_files import check_unique_ids
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.hotpotqa import NAMES, answer_scores, hotpot_scores, support_scores
from efficient_attention.tasks.problems.best_spans import best_spans
from efficient_attention.tasks.problems.encoded_text import encoded_texts, trimmed_substring
from efficient_attention.tasks.problems.multi_hop_rows import (
    TYPES,
    MarkedText,
    answer_positions,
    answer_type,
    encoded_marked_texts,
    marked_texts,
    marker_ids,
    paragraph_arrays,
)
from efficient_attention.tasks.problems.overlong_texts import truncation_notes
from efficient_attention.tasks.problems.problem import Feature, Outputs, Problem
from efficient_attention.tasks.problems.token_windows import window_spans

THRESHOLD = 'support_threshold'
FOR_TRAINING = ('tokens', 'token_types', 'is_global', 'start', 'end', 'type', 'support')
FOR_PREDICTION = ('text', 'offset_start', 'offset_end', 'sentence')
Row = tuple[Feature, Outputs]
GRID = np.arange(1, 20) / 20  # support thresholds to choose from


@dataclasses.dataclass(frozen=True)
class MultiHopPrediction:
    """An answer, its type, and the probability that each sentence supports it.

    Attributes:
        answer: 'yes', 'no' or a span of a title or sentence; '' if the row offers no span.
        type: one of TYPES.
        score: the probability of the type. For a span it is multiplied by the span's probability among the best spans.
        support: (sentence, probability) of each sentence of the row, in order.
    """

    answer: str
    type: str
    score: float
    support: tuple[tuple[SentenceId, float], ...] = ()

    def supporting_sentences(self, threshold: float) -> list[SentenceId]:
        """Returns the sentences whose support probability is above `threshold`."""
        return list(dict.fromkeys(sentence for sentence, chance in self.support if chance > threshold))


class MultiHop(Problem[MultiHopQuestion, MultiHopPrediction]):
    """Multi-hop question answering: predicts the answer (a span, yes or no) and the supporting sentences.

    If the answer is 'yes' or 'no', or is not completely in the row, start and end are position 0. Rows for prediction
    also have 'text', 'offset_start', 'offset_end' and 'sentence', int32 [l], as returned by
    `paragraph_arrays`.

    Attributes:
        thresholds: {'support_threshold': the probability above which a sentence supports the answer}, initially 0.5. On
            a dev split, `score` sets it to the value among 0.05, 0.1, ... 0.95 with the best 'sp_f1'.
        notes: warnings about cut or left-out rows, one line each.
    """

    head = 'multi_hop'
    best_metric = 'joint_f1'
    metric_names = frozenset([f'{part}{name}' for part in ('', 'sp_', 'joint_') for name in NAMES] + [THRESHOLD])

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        super().__init__(config, encoder, length)
        if config.format != 'hotpotqa':
            raise InputError(f"examples.format is {config.format!r}; 'multi_hop' reads 'hotpotqa'")
        self.thresholds: dict[str, float] = {THRESHOLD: 0.5}
        least = config.question_length + self.question_paragraph_template.special_token_count + 2
        if length < least:
            raise InputError(f'data.length is {length}; with examples.question_length it must be at least {least}')

    @functools.cached_property
    def question_paragraph_template(self) -> SpecialTokensTemplate:
        """Returns the template of a row: the special tokens around the question and the paragraphs."""
        return special_tokens_template_of(self.encoder, is_pair=True)

    @functools.cached_property
    def title_and_sentence_markers(self) -> tuple[int, int]:
        """Returns the token ids of the markers of titles and of sentences."""
        return marker_ids(self.encoder)

    def read_examples(self, split: str) -> list[MultiHopQuestion]:
        """Returns the questions of a split, in file order; raises InputError if the config names no files."""
        text = {'train': self.config.train, 'test': self.config.test}.get(split, self.config.dev)
        if not text:
            raise InputError(f'examples.{split} is empty; it must name files')
        questions = read_hotpotqa(text, is_labelled=split != 'test')
        if split != 'train':
            check_unique_ids((question.id, question.place) for question in questions)
        return questions

    def encode(self, examples: Sequence[MultiHopQuestion], *, is_training: bool = False) -> list[Feature]:
        """Returns the questions as rows of tokens, one row per question if the paragraphs fit.

        Otherwise `examples.overlong` decides whether a question has several windows, a cut row or no row.
        """
        is_labelled = all(example.answers is not None for example in examples)
        questions = encoded_texts(self.encoder, [example.question for example in examples])
        self._notes |= truncation_notes(questions, [example.place for example in examples], self.config.question_length)
        kept = FOR_TRAINING if is_training else (*FOR_TRAINING, *FOR_PREDICTION)
        features: list[Feature] = []
        overlong: list[str] = []
        lost: list[str] = []
        encoded_examples = zip(examples, questions, encoded_marked_texts(self.encoder, examples), strict=True)
        for number, (example, question, (texts, encoded)) in enumerate(encoded_examples):
            ids, body = (
                question.ids[: self.config.question_length],
                paragraph_arrays(texts, encoded, self.title_and_sentence_markers),
            )
            spans = self.paragraph_window_spans(len(ids), len(body['tokens']), example.place, overlong)
            rows = [self.make_row(ids, {name: array[slice(*span)] for name, array in body.items()}) for span in spans]
            if is_labelled:
                answer, before = (
                    answer_positions(example, texts, encoded),
                    self.question_paragraph_template.second_text_start(len(ids)),
                )
                for row, span in zip(rows, spans, strict=True):
                    row |= multi_hop_labels(example, texts, row, answer_position_in_row(span, answer, before))
                is_lost = not any(row['type'] or row['start'] for row in rows)
                lost += [example.place] if rows and is_lost else []
            order = np.array(number, np.int32)
            features += [{name: row[name] for name in kept if name in row} | {'example': order} for row in rows]
        self.add_notes(len(examples), overlong, lost)
        return features

    def paragraph_window_spans(
        self, question_length: int, count: int, place: str, overlong: list[str]
    ) -> list[tuple[int, int]]:
        """Returns, for each row of a question, the span (first, end) of the `count` paragraph tokens that the row
        contains.

        A question that is too long is added to `overlong`.

        Raises:
            InputError: the paragraphs do not fit into one row, and `examples.overlong` is 'error'.
        """
        capacity = self.length - self.question_paragraph_template.special_token_count - question_length
        if count <= capacity or self.config.overlong == 'windows':
            return window_spans(count, capacity, self.config.stride)
        overlong.append(f'{place}: {count + self.length - capacity} tokens')
        if self.config.overlong == 'error':
            raise InputError(f"{overlong[-1]}, above data.length {self.length}; examples.overlong is 'error'")
        return [] if self.config.overlong == 'skip' else [(0, capacity)]

    def make_row(self, question: np.ndarray, body: dict[str, np.ndarray]) -> Feature:
        """Returns a row of a question and paragraphs, with the arrays of the paragraphs and the mask of global tokens.

        The arrays of the paragraphs are -1 at other tokens.
        """
        row = self.question_paragraph_template.row(question, body['tokens'])
        start = self.question_paragraph_template.second_text_start(len(question))
        inside = slice(start, start + len(body['tokens']))
        for name in FOR_PREDICTION:
            row[name] = np.full(len(row['tokens']), -1, np.int32)
            row[name][inside] = body[name]
        if self.config.has_global:
            row['is_global'] = np.arange(len(row['tokens'])) < start - len(self.question_paragraph_template.fixed[1])
            row['is_global'][inside] = body['is_marker'] == 1
        return row

    def add_notes(self, count: int, overlong: Sequence[str], lost: Sequence[str]) -> None:
        """Adds notes about rows that were cut or left out, and about rows that do not contain their answer."""
        if overlong:
            what = 'left out' if self.config.overlong == 'skip' else f'cut to {self.length} tokens'
            line = f'{len(overlong)} of {count} rows are {what}, the first: {overlong[0]}'
            self._notes[line] = line
        if lost:
            line = f'{len(lost)} of {count} rows do not hold their answer, the first: {lost[0]}'
            self._notes[line] = line

    def is_labelled(self, example: MultiHopQuestion) -> bool:
        """Returns whether the question has known answers."""
        return example.answers is not None

    def predict_from_outputs(
        self, examples: Sequence[MultiHopQuestion], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[MultiHopPrediction]:
        """Returns the prediction for each question, from the outputs of all its rows.

        A question without rows has an empty answer.
        """
        rows: list[list[Row]] = [[] for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            rows[int(feature['example'])].append((feature, output))
        return [
            self.prediction_from_rows(marked_texts(one), its_rows) for one, its_rows in zip(examples, rows, strict=True)
        ]

    def prediction_from_rows(self, texts: Sequence[MarkedText], rows: Sequence[Row]) -> MultiHopPrediction:
        """Returns the prediction for one question, from the outputs of its rows.

        The type comes from the mean logits, the answer is the best span of all rows, and each sentence gets its highest
        support probability.
        """
        if not rows:
            return MultiHopPrediction('', TYPES[0], 0.0)
        types = scipy.special.softmax(np.mean([output['type'] for _, output in rows], axis=0).astype(np.float64))
        kind = int(types.argmax())
        answer, chance = (TYPES[kind], 1.0) if kind else self.best_span_text(texts, rows)
        support: dict[SentenceId, float] = {}
        for feature, output in rows:
            markers = np.flatnonzero(feature['sentence'] >= 0)
            chances = 1 / (1 + np.exp(-output['support'][markers].astype(np.float64)))
            for number, supports in zip(feature['sentence'][markers].tolist(), chances.tolist(), strict=True):
                sentence = texts[number].sentence
                if sentence is not None:
                    support[sentence] = max(supports, support.get(sentence, 0.0))
        return MultiHopPrediction(answer, TYPES[kind], float(types[kind]) * chance, tuple(support.items()))

    def best_span_text(self, texts: Sequence[MarkedText], rows: Sequence[Row]) -> tuple[str, float]:
        """Returns the text of the most likely span over all rows, and its probability.

        The probabilities of the best spans sum to 1.
        """
        options = {'answer_length': self.config.answer_length, 'count': self.config.best_count}
        found = []
        for feature, output in rows:
            text_L = feature['text']
            spans = best_spans(output['logits'], text_L >= 0, text_L, **options)
            for first, last, score in zip(*(column.tolist() for column in spans), strict=True):
                text = texts[int(text_L[first])].text
                place = int(feature['offset_start'][first]), int(feature['offset_end'][last])
                found.append((score, text[slice(*trimmed_substring(text, *place))]))
        if not found:
            return '', 0.0
        found = sorted(found, key=lambda pair: -pair[0])[: self.config.best_count]
        return found[0][1], float(scipy.special.softmax(np.array([score for score, _ in found]))[0])

    def score(
        self, examples: Sequence[MultiHopQuestion], predictions: Sequence[MultiHopPrediction], split: str
    ) -> dict[str, float]:
        """Returns the scores of HotpotQA's official script; a dev split chooses the support threshold first."""
        pairs = list(zip(examples, predictions, strict=True))
        if self.chooses_thresholds and split in self.dev_splits:
            best = max(GRID.tolist(), key=lambda one: (mean_support_f1(pairs, one), -abs(one - 0.5)))
            self.thresholds = {THRESHOLD: best}
        threshold = self.thresholds[THRESHOLD]
        answers = [answer_scores(guess.answer, example.answers or ('',)) for example, guess in pairs]
        support = [
            support_scores(guess.supporting_sentences(threshold), example.supporting) for example, guess in pairs
        ]
        return hotpot_scores(answers, support) | {THRESHOLD: threshold}

    def write_predictions(
        self,
        examples: Sequence[MultiHopQuestion],
        predictions: Sequence[MultiHopPrediction],
        split: str,
        folder: Path,
    ) -> list[Path]:
        """Writes answers and supporting sentences as 'predictions.json', which HotpotQA's script reads.

        The file has {'answer': {id: text}, 'sp': {id: [[title, number], ...]}}.
        """
        del split
        pairs = list(zip(examples, predictions, strict=True))
        threshold = self.thresholds[THRESHOLD]
        content = {
            'answer': {example.id: prediction.answer for example, prediction in pairs},
            'sp': {
                example.id: [list(one) for one in guess.supporting_sentences(threshold)] for example, guess in pairs
            },
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / 'predictions.json'
        path.write_text(json.dumps(content) + '\n', encoding='utf-8')
        return [path]

    def example_from_python(self, value: Any) -> MultiHopQuestion:
        """Returns a question from {'question': text, 'context': [[title, [sentence, ...]], ...]}."""
        if not isinstance(value, dict) or not {'question', 'context'} <= set(value):
            raise InputError("a question is {'question': text, 'context': [[title, [sentence, ...]], ...]}")
        question, paragraphs = value['question'], parse_paragraphs(value['context'], "'context'")
        if not isinstance(question, str) or not question.strip():
            raise InputError(f"'question' is {question!r}; it must be a text that is not empty")
        if not any(one.text.strip() for one in marked_texts(MultiHopQuestion('', question, paragraphs))):
            raise InputError("'context' is empty; it must have paragraphs")
        return MultiHopQuestion(str(value.get('id', '')), question, paragraphs, place='the question')

    def prediction_to_python(self, prediction: MultiHopPrediction) -> dict[str, Any]:
        """Returns {'answer', 'type', 'score', 'support': [[title, sentence number], ...]} of a prediction."""
        support = [list(one) for one in prediction.supporting_sentences(self.thresholds[THRESHOLD])]
        return {'answer': prediction.answer, 'type': prediction.type, 'score': prediction.score, 'support': support}


def answer_position_in_row(span: tuple[int, int], answer: tuple[int, int] | None, before: int) -> tuple[int, int]:
    """Returns the answer's first and last position in a row; (0, 0) if the row does not have the whole answer.

    `span` is the range of paragraph tokens in the row, and `before` the number of tokens before them in the row.
    """
    if answer is None or not span[0] <= answer[0] <= answer[1] < span[1]:
        return 0, 0
    return answer[0] - span[0] + before, answer[1] - span[0] + before


def multi_hop_labels(
    example: MultiHopQuestion, texts: Sequence[MarkedText], row: Feature, place: tuple[int, int]
) -> Feature:
    """Returns the labels of a row: 'type', 'start', 'end' and 'support'.

    `place` is the first and last position of a span answer.
    """
    kind = answer_type(example)
    start, end = (0, 0) if kind else place
    support = np.full(len(row['tokens']), -1, np.float32)
    for position in np.flatnonzero(row['sentence'] >= 0):
        support[position] = texts[row['sentence'][position]].sentence in example.supporting
    scalars = {'type': kind, 'start': start, 'end': end}
    return {name: np.array(value, np.int32) for name, value in scalars.items()} | {'support': support}


def mean_support_f1(pairs: Sequence[tuple[MultiHopQuestion, MultiHopPrediction]], threshold: float) -> float:
    """Returns the mean F1 of the predicted supporting sentences at a support threshold."""
    return sum(support_scores(guess.supporting_sentences(threshold), one.supporting)[1] for one, guess in pairs) / len(
        pairs
    )
