"""Reads and encodes the labelled files of a fine-tuning run at first use, and caches the rows."""

import functools
from pathlib import Path
from typing import Any

from efficient_attention.config.data import DataConfig
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.text_encoder import TextEncoder, text_encoder
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.problem import Feature, Problem
from efficient_attention.tasks.problems.registry import make_problem


class EncodedExamples:
    """The encoded rows of a fine-tuning problem, for each split; they are read at first use and cached."""

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        self.problem: Problem[Any, Any] = make_problem(config, encoder, length)

    def read_examples(self, split: str) -> list[Any]:
        """Returns the examples of a split; raises InputError in the same cases as `Problem.read_examples`.

        If no file is found, the message names the config field.
        """
        try:
            return self.problem.read_examples(split)
        except InputError as error:
            if not str(error).startswith('no file matches'):
                raise
            field = split if split in ('train', 'test') else 'dev'
            raise InputError(f'examples.{field}: {error}') from None

    @functools.cached_property
    def train_rows(self) -> list[Feature]:
        """Returns the encoded training rows.

        Raises:
            InputError: the training files give no row.
        """
        features = self.problem.encode(self.read_examples('train'), is_training=True)
        if not features:
            raise InputError(f'examples.train {self.problem.config.train!r} gives no row to train on')
        return features

    @functools.cached_property
    def dev_examples(self) -> dict[str, list[Any]]:
        """Returns the examples of each dev split, by the name of the split."""
        return {split: self.read_examples(split) for split in self.problem.dev_splits}

    @functools.cached_property
    def test_examples(self) -> dict[str, list[Any]]:
        """Returns {'test': the test examples}; raises InputError if an example has no label."""
        examples = self.read_examples('test')
        for example in examples:
            if not self.problem.is_labelled(example):
                where = getattr(example, 'file_and_line', 'a row')
                raise InputError(f'{where}: no label to score by; examples.test needs them with eval.split test')
        return {'test': examples}

    @functools.cached_property
    def dev_rows(self) -> dict[str, list[Feature]]:
        """Returns the encoded rows of each dev split, by the name of the split."""
        return {split: self.problem.encode(examples) for split, examples in self.dev_examples.items()}

    @functools.cached_property
    def test_rows(self) -> dict[str, list[Feature]]:
        """Returns {'test': the encoded test rows}."""
        return {split: self.problem.encode(examples) for split, examples in self.test_examples.items()}


def load_examples(examples: ExamplesConfig, data: DataConfig) -> EncodedExamples:
    """Returns the encoded rows of the config's labelled files, for the tokenizer that the config names.

    Raises:
        InputError: the tokenizer or the config is invalid.
    """
    return EncodedExamples(examples, text_encoder(Path(data.tokenizer), lowercase=data.lowercase), data.length)
