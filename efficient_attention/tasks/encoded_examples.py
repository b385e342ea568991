"""The rows of a fine-tuning run: a problem's files, read and encoded when they are first asked for."""

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
    """The rows of a problem's splits, read and encoded when first asked for, and kept."""

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        self.problem: Problem[Any, Any] = make_problem(config, encoder, length)

    def read(self, split: str) -> list[Any]:
        """The examples of a split; raises InputError as `Problem.read`, with the field where no file is found."""
        try:
            return self.problem.read(split)
        except InputError as error:
            if not str(error).startswith('no file matches'):
                raise
            field = split if split in ('train', 'test') else 'dev'
            raise InputError(f'examples.{field}: {error}') from None

    @functools.cached_property
    def train(self) -> list[Feature]:
        """Training rows.

        Raises:
            InputError: there are none.
        """
        features = self.problem.encode(self.read('train'), is_training=True)
        if not features:
            raise InputError(f'examples.train {self.problem.config.train!r} gives no row to train on')
        return features

    @functools.cached_property
    def dev_examples(self) -> dict[str, list[Any]]:
        """The examples of each dev split."""
        return {split: self.read(split) for split in self.problem.dev_splits}

    @functools.cached_property
    def test_examples(self) -> dict[str, list[Any]]:
        """The examples of the test split, under its name; raises InputError where one has no label."""
        examples = self.read('test')
        for example in examples:
            if not self.problem.is_labelled(example):
                where = getattr(example, 'where', 'a row')
                raise InputError(f'{where}: no label to score by; examples.test needs them with eval.split test')
        return {'test': examples}

    @functools.cached_property
    def dev(self) -> dict[str, list[Feature]]:
        """The rows of each dev split."""
        return {split: self.problem.encode(examples) for split, examples in self.dev_examples.items()}

    @functools.cached_property
    def test(self) -> dict[str, list[Feature]]:
        """The rows of the test split, under its name."""
        return {split: self.problem.encode(examples) for split, examples in self.test_examples.items()}


def load_examples(examples: ExamplesConfig, data: DataConfig) -> EncodedExamples:
    """The rows of a config's examples for the tokenizer in a file.

    Raises:
        InputError: the tokenizer or the config does not serve.
    """
    return EncodedExamples(examples, text_encoder(Path(data.tokenizer), lowercase=data.lowercase), data.length)
