"""The common base class of classification and regression: one or two texts per example, with one label."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.arena.dataset_interface import SPLITS, ArenaDataset
from efficient_attention.data.examples.glue import MISMATCHED, GlueTask, glue_sources, glue_subset, glue_task
from efficient_attention.data.examples.labelled_text import ARENA, LabelledText, arena_dataset, read_labelled
from efficient_attention.data.examples.special_tokens_template import pad_and_stack_choices, special_tokens_template_of
from efficient_attention.data.examples.text_encoder import TextEncoder, ids_of
from efficient_attention.data.tokenizers.fixed_vocabulary import check_fixed_vocabulary
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.overlong_texts import Ids, OverlongCounts, TokenLengthPolicy
from efficient_attention.tasks.problems.problem import Feature, Problem
from efficient_attention.tasks.problems.sentence_rows import (
    SentenceLengthPolicy,
    check_several_sentences,
    sentence_token_ids,
)

Prediction = TypeVar('Prediction')
FORMATS = ('table', 'glue', ARENA)
TOWERS = 2  # number of texts per example, if each text is encoded as a separate row
MATCHED_SPLIT, MISMATCHED_SPLIT = 'dev_matched', 'dev_mismatched'


class OneLabelProblem(Problem[LabelledText, Prediction], abc.ABC):
    """A fine-tuning problem with one label for a text or a text pair.

    `notes` lists what was cut or left out, one line per file.
    """

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """Checks the config, and prepares how texts are split and encoded as rows."""
        super().__init__(config, encoder, length)
        if config.format not in FORMATS:
            known = ' or '.join(map(repr, FORMATS))
            raise InputError(f'examples.format is {config.format!r}; examples.problem {config.problem!r} reads {known}')
        self.head = 'towers' if config.towers else 'sequence'
        self.glue: GlueTask | None = glue_task(config.name) if config.format == 'glue' else None
        self.rule = TokenLengthPolicy(config.overlong, config.stride, length)
        self.arena = first_arena_dataset(config) if config.format == ARENA else None
        if self.arena is not None:
            check_fixed_vocabulary(encoder.tokenizer, self.arena.kind, self.arena.vocabulary)
            check_same_arena_kind(config, self.arena)
        self.text_count = self._text_count()
        if config.towers and self.text_count != TOWERS:
            raise InputError(f'examples.towers is {config.towers}; a row here has one text, so it must be False')
        # number of texts -> template of a row
        self.templates = {texts: special_tokens_template_of(encoder, is_pair=texts == 2) for texts in (1, 2)}
        in_a_row = 1 if config.towers else self.text_count
        # This call raises InputError now if the rows are too short for any text.
        self.rule.tokens_left_for_texts(self.templates[in_a_row].special_token_count, in_a_row)
        self.sentence_rule = SentenceLengthPolicy(config.overlong, config.sentences, length)
        if config.sentences and self.text_count > 1:
            raise InputError(f'examples.sentences is {config.sentences}; it reads one text, and a row here has two')
        self.dev_splits = self._dev_splits()

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Returns the column names of the texts, for messages."""
        if self.glue:
            return self.glue.texts
        if self.arena is not None:
            return ('first text', 'second text')[: self.text_count]
        return (self.config.text, self.config.text_pair)[: self.text_count]

    def _text_count(self) -> int:
        if self.arena is not None:
            return self.arena.texts
        return len(self.glue.texts) if self.glue else 1 + bool(self.config.text_pair)

    def _dev_splits(self) -> tuple[str, ...]:
        if not self.config.dev:
            return ()
        if not self.glue or self.glue.title != 'MNLI':
            return ('dev',)
        are_mismatched = {glue_subset(name) == MISMATCHED for name in glue_sources(self.config.dev, 'dev')}
        splits = ((MATCHED_SPLIT, False), (MISMATCHED_SPLIT, True))
        return tuple(name for name, is_mismatched in splits if is_mismatched in are_mismatched)

    def read_examples(self, split: str) -> list[LabelledText]:
        """Returns the labelled texts of a split, in file order, without broken rows, which are counted in a note."""
        faults: list[str] = []
        kind = 'dev' if split in self.dev_splits else split
        examples = list(read_labelled(self.config, kind, faults))
        if faults:
            self._notes[f'{split} faults'] = f'{len(faults)} broken rows were left out, the first: {faults[0]}'
        if split in (MATCHED_SPLIT, MISMATCHED_SPLIT):
            examples = [one for one in examples if (one.subset == MISMATCHED) == (split == MISMATCHED_SPLIT)]
        for example in examples:
            if example.label is not None:
                self.label_array(example)  # This call raises InputError for an unknown label.
        return examples

    def encode(self, examples: Sequence[LabelledText], *, is_training: bool = False) -> list[Feature]:
        """Returns the texts as rows of tokens; a text that is too long is handled as `examples.overlong` says."""
        if self.config.sentences:
            return self._encode_sentences(examples, is_training=is_training)
        if self.config.towers:
            return self._encode_towers(examples)
        counts = OverlongCounts(self.rule)
        features: list[Feature] = []
        for index, (example, texts) in enumerate(zip(examples, self._token_ids(examples), strict=True)):
            template = self.templates[len(texts)]
            rows = self.rule.fit_to_rows(texts, template.special_token_count, example.file_and_line, self.text_columns)
            is_overlong = sum(map(len, texts)) + template.special_token_count > self.length
            counts.count_row(example.file, is_overlong=is_overlong, made=len(rows))
            features += [self._make_feature(template.row(*row), example, index) for row in rows]
        self.note_overlong_rows(counts)
        return features

    def _encode_towers(self, examples: Sequence[LabelledText]) -> list[Feature]:
        """Returns the two texts of each example as separate rows, each of at most `data.length` tokens."""
        counts, template = OverlongCounts(self.rule), self.templates[1]
        if self.rule.policy == 'windows':
            raise InputError("examples.overlong is 'windows'; with examples.towers a text is one row: cut or refuse it")
        features: list[Feature] = []
        for index, (example, texts) in enumerate(zip(examples, self._token_ids(examples), strict=True)):
            rows = [
                self.rule.fit_to_rows((ids,), template.special_token_count, example.file_and_line, (field,))
                for ids, field in zip(texts, self.text_columns, strict=True)
            ]
            made = min(map(len, rows))  # number of rows, 0 if one of the two texts is left out
            counts.count_row(
                example.file, is_overlong=max(map(len, texts)) + template.special_token_count > self.length, made=made
            )
            if made:
                joined = pad_and_stack_choices([template.row(*row) for [row] in rows], self.encoder.pad)
                features.append(self._make_feature(joined, example, index))
        self.note_overlong_rows(counts)
        return features

    def _encode_sentences(self, examples: Sequence[LabelledText], *, is_training: bool) -> list[Feature]:
        counts, template = OverlongCounts(self.sentence_rule), self.templates[1]
        features: list[Feature] = []
        texts = sentence_token_ids(self.encoder, [example.texts[0] for example in examples])
        if is_training:
            check_several_sentences(texts, self.config.sentences)
        for index, (example, sentences) in enumerate(zip(examples, texts, strict=True)):
            rows = self.sentence_rule.fit_to_rows(sentences, template.special_token_count, example.file_and_line)
            is_overlong = self.sentence_rule.is_overlong(sentences, template.special_token_count)
            counts.count_row(example.file, is_overlong=is_overlong, made=len(rows))
            joined = [pad_and_stack_choices([template.row(ids) for ids in row], self.encoder.pad) for row in rows]
            features += [self._make_feature(row, example, index) for row in joined]
        self.note_overlong_rows(counts)
        return features

    def _token_ids(self, examples: Sequence[LabelledText]) -> Iterator[list[Ids]]:
        ids = iter(ids_of(self.encoder, [text for example in examples for text in example.texts]))
        for example in examples:
            yield list(example.ids) or [next(ids) for _ in example.texts]

    def _make_feature(self, row: Feature, example: LabelledText, index: int) -> Feature:
        feature = self.mark_global_token(row | {'example': np.array(index, np.int32)})
        return feature if example.label is None else feature | {'label': self.label_array(example)}

    @abc.abstractmethod
    def label_array(self, example: LabelledText) -> np.ndarray:
        """Returns the label of a labelled example as an array, in the form in which a row stores it.

        Raises:
            InputError: the label is not among the known labels; the message names file and line.
        """

    def is_labelled(self, example: LabelledText) -> bool:
        """Returns whether the example has a label."""
        return example.label is not None

    def example_from_python(self, value: Any) -> LabelledText:
        """Returns an example from one text, a pair of texts, or {'text': ..., 'text_pair': ...}.

        Raises:
            InputError: the value has another form, has an empty text, or has the wrong number of texts for the task.
        """
        if isinstance(value, dict):
            value = [value[key] for key in ('text', 'text_pair') if value.get(key) is not None]
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, tuple | list) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise InputError("an input is a text, a pair of texts or {'text': ..., 'text_pair': ...}, none of it empty")
        if len(texts) != self.text_count:
            raise InputError(f'an input has {len(texts)} texts; this task is about {self.text_count}')
        return LabelledText('', 'input', '', tuple(texts))


def first_arena_dataset(config: ExamplesConfig) -> ArenaDataset:
    """Returns the first Long Range Arena dataset that a split names; raises InputError if no split names one.

    All splits must match the labels and the kind of this dataset.
    """
    for split in SPLITS:
        if getattr(config, split).strip():
            return arena_dataset(config, split)
    raise InputError("examples.train is empty; with examples.format 'arena' it must name a set of rows")


def check_same_arena_kind(config: ExamplesConfig, first: ArenaDataset) -> None:
    """Raises InputError if the Long Range Arena dataset of a split differs from the first dataset in kind or labels."""
    for split in SPLITS:
        if not getattr(config, split).strip():
            continue
        other = arena_dataset(config, split)
        if (other.kind, other.labels) != (first.kind, first.labels):
            raise InputError(
                f'examples.{split} is {other.text!r}; its rows must have the same kind and the same '
                f'labels as those of {first.text!r}'
            )


def pair_with_predictions(
    examples: Sequence[LabelledText], predictions: Sequence[Prediction | None]
) -> list[tuple[LabelledText, Prediction]]:
    """Returns pairs of an example and its prediction, without examples that have no prediction.

    Raises:
        InputError: an example with a prediction has no label to compare with; the message names file and line.
    """
    pairs = [(one, guess) for one, guess in zip(examples, predictions, strict=True) if guess is not None]
    for example, _ in pairs:
        if example.label is None:
            raise InputError(f'{example.file_and_line}: no label to compare the prediction with')
    return pairs
