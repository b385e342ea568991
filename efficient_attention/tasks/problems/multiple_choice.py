"""Multiple choice (SWAG, CODAH, RACE, a user's tables), where each choice is a row [CLS] context [SEP] ending [SEP]."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.multiple_choice import ChoiceQuestion, check_string_list, read_choices
from efficient_attention.data.examples.special_tokens_template import pad_and_stack_choices, special_tokens_template_of
from efficient_attention.data.examples.text_encoder import TextEncoder, ids_of
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.glue import accuracy
from efficient_attention.tasks.problems.overlong_texts import Ids, OverlongCounts, TokenLengthPolicy
from efficient_attention.tasks.problems.prediction_files import write_prediction_json_lines
from efficient_attention.tasks.problems.problem import Feature, Outputs, Problem, mean_logits
from efficient_attention.tasks.problems.token_windows import window_starts

FORMATS = ('swag', 'race', 'table')
FIELDS = ('context', 'ending')

Pair = tuple[Ids, Ids]  # token ids of context and ending
PairsOfRows = list[list[tuple[Ids, ...]]]  # for each feature, one tuple of texts per choice


@dataclasses.dataclass(frozen=True)
class ChoicePrediction:
    """The index of the most likely choice (from 0), and all choices with their probabilities."""

    index: int
    choices: tuple[str, ...]
    probabilities: tuple[float, ...]


class MultipleChoice(Problem[ChoiceQuestion, ChoicePrediction | None]):
    """A fine-tuning problem whose label is one of A choices.

    If a question was left out as too long, its prediction is None.
    """

    head = 'choice'
    metric_names = frozenset({'accuracy'})
    best_metric = 'accuracy'

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """Checks the config, and prepares how context and endings are encoded as rows."""
        super().__init__(config, encoder, length)
        if config.format not in FORMATS:
            raise InputError(f'examples.format is {config.format!r}; multiple choice reads {", ".join(FORMATS)}')
        self.template = special_tokens_template_of(encoder, is_pair=True)
        self.rule = TokenLengthPolicy(config.overlong, config.stride, length)
        self.room = self.rule.tokens_left_for_texts(self.template.special_token_count, 2)
        self.dev_splits = ('dev',) if config.dev else ()

    def read_examples(self, split: str) -> list[ChoiceQuestion]:
        """Returns the questions of a split, in file order."""
        return list(read_choices(self.config, split))

    def encode(self, examples: Sequence[ChoiceQuestion], *, is_training: bool = False) -> list[Feature]:
        """Returns each question as rows of tokens, with one row per choice."""
        del is_training  # `is_training` is unused, because training drops no row.
        counts = OverlongCounts(self.rule)
        features: list[Feature] = []
        contexts = ids_of(self.encoder, [question.context for question in examples])
        endings = iter(ids_of(self.encoder, [ending for question in examples for ending in question.endings]))
        for index, (question, context) in enumerate(zip(examples, contexts, strict=True)):
            texts = [(context, next(endings)) for _ in question.choices]
            is_overlong = max(len(first) + len(second) for first, second in texts) > self.room
            rows = self._choice_rows(question, texts, is_overlong=is_overlong)
            counts.count_row(question.file, is_overlong=is_overlong, made=len(rows))
            features += [self._make_feature(question, row, index) for row in rows]
        self.note_overlong_rows(counts)
        return features

    def _choice_rows(
        self, question: ChoiceQuestion, texts: Sequence[Pair], *, is_overlong: bool
    ) -> list[list[Feature]]:
        """Returns the features of a question, each as a list of rows with one row per choice.

        There is one feature, or one per window, or none if the question is left out.
        """
        if is_overlong and self.rule.policy == 'windows':
            pairs_of_rows = self._context_windows(question, texts)
        else:
            fitted = [
                self.rule.fit_to_rows(pair, self.template.special_token_count, question.file_and_line, FIELDS)
                for pair in texts
            ]
            pairs_of_rows = [[rows[0] for rows in fitted]] if all(fitted) else []
        return [[self.template.row(*pair) for pair in pairs] for pairs in pairs_of_rows]

    def _context_windows(self, question: ChoiceQuestion, texts: Sequence[Pair]) -> PairsOfRows:
        """Returns windows of a long context, each paired with the whole ending of every choice.

        The windows are the same for all choices.
        """
        context, longest = texts[0][0], max(len(ending) for _, ending in texts)
        if longest > self.room // 2:
            raise InputError(
                f'{question.file_and_line}: a choice has {longest} tokens with its question; windows '
                'of the context need half '
                f'of the {self.room} that data.length {self.length} leaves'
            )
        width = self.room - longest
        starts = window_starts(len(context), width, self.config.stride)
        return [[(context[start : start + width], ending) for _, ending in texts] for start in starts]

    def _make_feature(self, question: ChoiceQuestion, rows: list[Feature], index: int) -> Feature:
        feature = pad_and_stack_choices(rows, self.encoder.pad) | {'example': np.array(index, np.int32)}
        if question.answer is not None:
            feature['label'] = np.array(question.answer, np.int32)
        return self.mark_global_token(feature)

    def is_labelled(self, example: ChoiceQuestion) -> bool:
        """Returns whether the question has a known answer."""
        return example.answer is not None

    def predict_from_outputs(
        self, examples: Sequence[ChoiceQuestion], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[ChoicePrediction | None]:
        """Returns the most likely choice for each question, from the mean logits over its windows."""
        means = mean_logits(len(examples), features, outputs)
        return [
            logits if logits is None else _choice_prediction(one, logits)
            for one, logits in zip(examples, means, strict=True)
        ]

    def score(
        self, examples: Sequence[ChoiceQuestion], predictions: Sequence[ChoicePrediction | None], split: str
    ) -> dict[str, float]:
        """Returns the accuracy of the predicted choices, computed without the questions that were left out."""
        del split  # `split` is unused, because multiple choice has only one dev split.
        pairs = [(one, guess) for one, guess in zip(examples, predictions, strict=True) if guess]
        for question, _ in pairs:
            if question.answer is None:
                raise InputError(f'{question.file_and_line}: no answer to compare the prediction with')
        expected = np.array([question.answer for question, _ in pairs], np.int64)
        return {'accuracy': accuracy(expected, np.array([guess.index for _, guess in pairs], np.int64))}

    def write_predictions(
        self,
        examples: Sequence[ChoiceQuestion],
        predictions: Sequence[ChoicePrediction | None],
        split: str,
        folder: Path,
    ) -> list[Path]:
        """Writes JSON lines of id, context, question, choice, label (the index of the choice, from 0) and
        probabilities.
        """
        pairs = [(one, guess) for one, guess in zip(examples, predictions, strict=True) if guess]
        rows = [
            {
                'id': one.id,
                'context': one.context,
                'question': one.question,
                'choice': guess.choices[guess.index],
                'label': guess.index,
                'probabilities': guess.probabilities,
            }
            for one, guess in pairs
        ]
        return [write_prediction_json_lines(rows, split, folder)]

    def example_from_python(self, value: Any) -> ChoiceQuestion:
        """Returns a question from {'context': ..., 'choices': [...]}, with 'question' if there is one.

        Raises:
            InputError: the value has another form, or one of its texts is empty.
        """
        known = {'context', 'question', 'choices'}
        if not isinstance(value, dict) or not {'context', 'choices'} <= set(value) <= known:
            raise InputError("an input is {'context': ..., 'choices': [...]}, with a 'question' if there is one")
        context, question = value['context'], value.get('question') or ''
        if not isinstance(context, str) or not context.strip() or not isinstance(question, str):
            raise InputError("input: fields 'context' and 'question' are texts, the context not empty")
        return ChoiceQuestion(
            '', 'input', '', context, question, check_string_list(value['choices'], 'input', 'choices')
        )

    def prediction_to_python(self, prediction: ChoicePrediction | None) -> dict[str, Any] | None:
        """Returns {'choice', 'index', 'score', 'scores': in the order of the choices}; None if the question was left
        out and has no prediction."""
        if prediction is None:
            return None
        index, scores = prediction.index, list(prediction.probabilities)
        return {'choice': prediction.choices[index], 'index': index, 'score': scores[index], 'scores': scores}


def _choice_prediction(question: ChoiceQuestion, logits: np.ndarray) -> ChoicePrediction:
    probabilities = scipy.special.softmax(logits[: len(question.choices)])  # the slice drops padded choices
    return ChoicePrediction(int(np.argmax(probabilities)), question.choices, tuple(map(float, probabilities)))
