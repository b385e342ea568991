"""Plain Python in, plain Python out: what a fine-tuned or pretrained checkpoint says of texts."""

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.examples import BUCKETS, ExamplesConfig
from efficient_attention.config.head import OF_ROWS, HeadConfig
from efficient_attention.data.examples.batches import FeatureBatches
from efficient_attention.data.examples.glue import glue_task
from efficient_attention.data.examples.labelled_text import ARENA
from efficient_attention.data.examples.text_encoder import TextEncoder, arrays_of, text_encoder, unknown_words
from efficient_attention.errors import InputError, require_at_least
from efficient_attention.inference.evaluate import evaluate_outputs, make_output_step
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.generation_pipelines import (
    TextGenerationPipeline,
    TextToTextPipeline,
    decoding_options,
    generation_options,
)
from efficient_attention.inference.items import check_text, for_each
from efficient_attention.inference.options import PipelineOptions
from efficient_attention.inference.pretrained_models import pretrained_encoder, pretrained_module, row_length
from efficient_attention.inference.search_options import say
from efficient_attention.interop.config_fields import MULTI_LABEL, SEVERAL
from efficient_attention.interop.config_in import default_labels
from efficient_attention.interop.generation_config import task_prefixes, task_settings
from efficient_attention.interop.pretrained import Pretrained, check_encoder, open_pretrained
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.tasks.fine_tuning import check_global, check_outputs
from efficient_attention.tasks.problems.one_label import first_set
from efficient_attention.tasks.problems.problem import Feature, Problem
from efficient_attention.tasks.problems.registry import make_problem
from efficient_attention.tasks.problems.several_outputs import SeveralOutputs

READ = ('tokens', 'token_types', 'lengths', 'is_global')  # of a feature; labels are not
POOLING = ('none', 'first', 'mean')
# what a user calls it: the problems of examples that it serves
PROBLEMS = {
    'text-classification': ('classification', 'regression', *SEVERAL),
    'token-classification': ('token_classification',),
    'question-answering': ('question_answering', 'multi_hop'),
    'multiple-choice': ('multiple_choice',),
}
TEXT_GENERATION = 'text-generation'
TEXT_TO_TEXT_TASKS = ('text2text-generation', 'translation', 'summarization')
TRANSLATION = re.compile(r'translation_\w+_to_\w+')  # as released T5s name theirs
FORMATS = {'question_answering': 'squad', 'multi_hop': 'hotpotqa'}  # of other problems: a table


def pipeline(
    task: str,
    path: str | Path,
    *,
    checkpoint: str = '',
    batch_size: int = 0,
    length: int = 0,
    **options: Unpack[PipelineOptions],
) -> Any:
    """A function from an input, or a list of them, to what the checkpoint says of each, in the same form.

    Texts that are longer than a row are read in windows, never cut; where `options` have it otherwise, or a question is
    too long, a UserWarning says what was cut or left out.

        'question-answering'    {'question', 'context'} -> {'answer', 'score', 'start', 'end'}, in characters
        'text-classification'   text, or (text, text) -> {'label', 'score', 'scores'}, or {'score'} of a regression;
                                {'scores'} where it has several outputs, {'labels', 'scores'} of several labels a row
        'token-classification'  text, or a tuple of its words -> [{'word', 'label', 'score', 'start', 'end'}, ...]
        'multiple-choice'       {'context', 'choices'} -> {'choice', 'score', 'scores'}
        'fill-mask'             text with [MASK] -> for each mask [{'token', 'score'}, ...]
        'feature-extraction'    text -> vectors [tokens, D]; [D] with pooling='first' or 'mean'
        'text2text-generation'  text -> {'text', 'score', 'is_ended'}, the `best` of them in a list where that is above
                                1; 'translation', 'translation_en_to_de' and the like, and 'summarization' are the
                                same, with the prefix that a released T5's config.json has for a task of that name
        'text-generation'       text -> {'text'}, the text with what a language model writes after it

    Args:
        task: one of the names above.
        path: a Hugging Face folder or a workdir.
        checkpoint: of a workdir: 'last', 'best', a step or 'average-5', the mean of the last 5; '' = the best where one
            is known, else the last.
        batch_size: rows at a time; 0 = 32.
        length: most tokens a row, of 'text2text-generation' those of the text that is read; 0 = as many as the model
            has positions for, or without a table of them as many as it was trained on, or 512.
        options: of 'fill-mask' `top`, of 'feature-extraction' `pooling`, of 'text2text-generation' `prefix`,
            `alignments` and the fields of `Decoding` (inference/translator.py), such as `beams`, `best` and `alpha`; of
            'text-generation' `max_tokens`, `temperature`, `top_k`, `top_p`, `seed`, `beams` and `best`; of the others
            fields of a config's `examples` group.

    Raises:
        InputError: unknown task, or a checkpoint without what the task needs.
    """
    require_at_least(0, 'batch_size', batch_size)
    if task == TEXT_GENERATION:
        if batch_size or length:
            raise InputError(f'{task} reads one prompt at a time, of any length; leave out batch_size and length')
        return TextGenerationPipeline(Path(path), generation_options(options), checkpoint=checkpoint)
    size = {'batch_size': batch_size or 32, 'length': length}
    return make_pipeline(task, Path(path), open_pretrained(Path(path), checkpoint), options, **size)


def make_pipeline(
    task: str, path: Path, pretrained: Pretrained, options: Mapping[str, Any], *, batch_size: int, length: int
) -> Any:
    """`pipeline` for a checkpoint that is open; `path` is for messages."""
    known = ('fill-mask', 'feature-extraction', *PROBLEMS, *TEXT_TO_TEXT_TASKS, TEXT_GENERATION)
    is_text_to_text = task in TEXT_TO_TEXT_TASKS or bool(TRANSLATION.fullmatch(task))
    if task not in known and not is_text_to_text:
        raise InputError(f'pipeline {task!r} is unknown; known: {", ".join(known)}')
    if is_text_to_text:
        searched = {**options, 'batch_size': batch_size}
        prefix, alignments = searched.pop('prefix', None), searched.pop('alignments', False)
        prefix = task_prefixes(pretrained.extra).get(task) if prefix is None else prefix
        say(path, f'settings of {task} in its config.json that are not used', task_settings(pretrained.extra, task))
        decoding = decoding_options(pretrained, path, searched)
        return TextToTextPipeline(pretrained, path, decoding, prefix=prefix, alignments=alignments, length=length)
    check_encoder(path, pretrained)
    if pretrained.tokenizer is None:
        raise InputError(f'{path}: no tokenizer there (tokenizer.json, vocab.txt or *.model)')
    encoder = text_encoder(pretrained.tokenizer, lowercase=pretrained.lowercase)
    vocabulary, limit = pretrained.model.vocab_size, pretrained.model.position_limit
    if encoder.size > vocabulary:
        raise InputError(f'{pretrained.tokenizer}: the tokenizer has {encoder.size} tokens; the model has {vocabulary}')
    if limit is not None and length > limit:
        raise InputError(f'length is {length}; the model has {limit} positions')
    size: dict[str, Any] = {'length': length or row_length(pretrained), 'batch_size': batch_size}
    if task == 'fill-mask':
        return MaskPipeline(pretrained, path, **size, **options)
    if task == 'feature-extraction':
        return VectorPipeline(pretrained, encoder, **size, **options)
    if pretrained.problem not in PROBLEMS[task]:
        raise InputError(f'{path} was trained for {pretrained.problem!r}; {task} needs {" or ".join(PROBLEMS[task])}')
    return TextPipeline(pretrained, encoder, examples_of(pretrained, options), **size)


def examples_of(pretrained: Pretrained, options: Mapping[str, Any]) -> ExamplesConfig:
    """The examples group that a checkpoint was trained with, without its files."""
    has_global = pretrained.model.global_tokens > 0
    outside = ExamplesConfig(has_global=has_global, **pretrained.examples)
    trained = pretrained.run.examples if pretrained.run else outside
    problem = 'classification' if pretrained.problem in SEVERAL else pretrained.problem
    fixed: dict[str, Any] = {'problem': problem, 'labels': pretrained.labels}
    fixed['overlong'] = 'truncate' if trained.towers else 'windows'  # a tower is one row
    unread: dict[str, Any] = {'train': '', 'dev': '', 'test': '', 'name': '', 'cache': 'cache'}
    is_glue_pair = trained.format == 'glue' and len(glue_task(trained.name).texts) == 2
    if is_glue_pair or (trained.format == ARENA and first_set(trained).texts == 2):
        unread['text_pair'] = 'text_pair'
    unread['format'] = FORMATS.get(pretrained.problem, 'table')
    try:
        return dataclasses.replace(trained, **unread, **{**fixed, **options})
    except TypeError:
        fields = ', '.join(field.name for field in dataclasses.fields(ExamplesConfig))
        raise InputError(f'unknown option among {", ".join(options)}; known: {fields}') from None


def with_labels(examples: ExamplesConfig, head: HeadConfig) -> ExamplesConfig:
    """The examples with labels 'LABEL_0', 'LABEL_1', ... where the head gives classes and nothing names them."""
    is_named = examples.labels or examples.train or examples.format == 'glue'
    has_labels = head.kind == 'token' or (head.kind in OF_ROWS and head.outputs > 1)
    if is_named or not has_labels:
        return examples
    return dataclasses.replace(examples, labels=default_labels(head.outputs))


class TextPipeline:
    """A fine-tuned model's answers to its problem, with the thresholds that were chosen for it."""

    def __init__(
        self,
        pretrained: Pretrained,
        encoder: TextEncoder,
        examples: ExamplesConfig,
        *,
        length: int,
        batch_size: int,
    ) -> None:
        self.encoder, self.examples, self.length = encoder, examples, length
        self.problem, self.thresholds = pretrained.problem, pretrained.thresholds()
        self.takes_any = pretrained.run is None  # what a folder from outside was trained on, one text or two
        self.config, self.head = config, head = pretrained.model, pretrained.head
        model = pretrained_module(lambda rngs: FineTuningModel(config, head, rngs=rngs), pretrained)
        self.predict = Predictor(
            model,
            length=length,
            pad=encoder.pad,
            batch_size=batch_size,
            is_row_alone=config.reads_length,
            sentences=examples.sentences,
        )

    def rows(self, task: Problem[Any, Any], examples: Sequence[Any]) -> list[Feature]:
        """The rows of examples; raises InputError where a text or its global tokens do not fit the model."""
        features = task.encode(examples)
        check_global(features, self.config)
        return features

    def outputs(self, features: Sequence[Feature]) -> list[dict[str, np.ndarray]]:
        """What the model says of rows; raises InputError where one has more global tokens than the model has places."""
        check_global(features, self.config)
        return self.predict(features)

    def task(self, examples: ExamplesConfig) -> Problem[Any, Any]:
        """The problem of these examples; raises InputError where they have more or fewer labels than the model."""
        task = self._problem(examples)
        check_outputs(task, self.head)
        for name in task.thresholds:
            task.thresholds[name] = self.thresholds.get(name, task.thresholds[name])
            task.chooses_thresholds = task.chooses_thresholds and name not in self.thresholds
        return task

    def _problem(self, examples: ExamplesConfig) -> Problem[Any, Any]:
        if self.problem not in SEVERAL:
            return make_problem(with_labels(examples, self.head), self.encoder, self.length)
        named = dataclasses.replace(examples, labels=examples.labels or default_labels(self.head.outputs))
        return SeveralOutputs(named, self.encoder, self.length, is_multi_label=self.problem == MULTI_LABEL)

    def __call__(self, inputs: Any) -> Any:
        """The answer to an input, or a list of answers to a list; warns of what was cut or left out."""
        answers, losses = self.answers(inputs if isinstance(inputs, list) else [inputs])
        for loss in losses:
            warnings.warn(loss, UserWarning, stacklevel=2)
        return answers if isinstance(inputs, list) else answers[0]

    def answers(self, inputs: list[Any]) -> tuple[list[Any], list[str]]:
        """The answers, and what was cut or left out, a line each."""
        is_pair = self.takes_any and bool(inputs) and 'text_pair' in pair_fields(inputs[0])
        column = self.examples.text_pair or ('text_pair' if is_pair else '')
        task = self.task(dataclasses.replace(self.examples, text_pair=column))
        examples = for_each(inputs, task.example)
        try:
            features = self.rows(task, examples)
        except InputError:
            for_each(examples, lambda example: self.rows(task, [example]))  # the error has the bad example's number
            raise
        predictions = task.decode(examples, features, self.outputs(features))
        return [task.answer(prediction) for prediction in predictions], task.losses + unknown_words(
            self.encoder, features
        )


def pair_fields(value: Any) -> tuple[str, ...]:
    """The names of an input's fields; a tuple of two is a pair of texts."""
    if isinstance(value, dict):
        return tuple(value)
    return ('text', 'text_pair') if isinstance(value, tuple) and len(value) == 2 else ()


class VectorPipeline:
    """An encoder's vectors of texts."""

    def __init__(
        self, pretrained: Pretrained, encoder: TextEncoder, *, length: int, batch_size: int, pooling: str = 'none'
    ) -> None:
        if pooling not in POOLING:
            raise InputError(f'pooling is {pooling!r}; known: {", ".join(POOLING)}')
        self.encoder, self.length, self.pooling = encoder, length, pooling
        model = pretrained_encoder(pretrained)
        alone = pretrained.model.reads_length
        self.predict = Predictor(model, length=length, pad=encoder.pad, batch_size=batch_size, is_row_alone=alone)

    def __call__(self, inputs: str | list[str]) -> Any:
        """float32 [tokens, D] of a text, special tokens included, or [D] if pooled; a list of them for a list."""
        if not isinstance(inputs, list):
            return self([inputs])[0]
        for_each(inputs, check_text)
        features = [self.features(text) for text in inputs]
        outputs = iter(self.predict([feature for rows in features for feature in rows]))
        return [self.pooled([next(outputs)['vectors'] for _ in rows]) for rows in features]

    def features(self, text: str) -> list[Feature]:
        """The rows of a text: windows next to one another where it is longer than one."""
        [encoding] = self.encoder.encode([text])
        encoding.truncate(self.length - self.encoder.added(is_pair=False))
        return [arrays_of(self.encoder.row(window)) for window in (encoding, *encoding.overflowing)]

    def pooled(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """A text's vectors from those of its windows."""
        if self.pooling == 'first':
            return vectors[0][0]
        joined = np.concatenate(vectors)
        return joined.mean(axis=0) if self.pooling == 'mean' else joined


class MaskPipeline:
    """A masked language model's tokens for each mask."""

    def __init__(self, pretrained: Pretrained, path: Path, *, length: int, batch_size: int, top: int = 5) -> None:
        self.filler, self.top, self.batch_size = MaskFiller(path, pretrained=pretrained), top, batch_size
        self.filler.length = length

    def __call__(self, inputs: str | list[str]) -> Any:
        """For each mask of a text its best tokens; a list of these for a list of texts."""
        if not isinstance(inputs, list):
            return self([inputs])[0]
        return [
            [[{'token': one.token, 'score': one.probability} for one in candidates] for candidates in masks]
            for masks in self.filler.fill(inputs, self.top, batch_size=self.batch_size)
        ]


class Predictor:
    """A model that has outputs, ready for rows of any length up to its own.

    Attributes:
        length: of the longest row that the model takes, tokens.
    """

    def __init__(
        self,
        model: FineTuningModel | Encoder,
        *,
        length: int,
        pad: int,
        batch_size: int = 32,
        is_row_alone: bool = False,
        sentences: int = 0,
    ) -> None:
        """`is_row_alone` and `sentences`: see `FeatureBatches`."""
        graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)
        self.length, self.pad, self.batch_size, self.is_row_alone = length, pad, batch_size, is_row_alone
        self.token_outputs, self.sentences = model.token_outputs, sentences
        self.step = jax.jit(make_output_step(graph))

    def __call__(self, features: Sequence[Feature]) -> list[dict[str, np.ndarray]]:
        """The outputs of each row, in order, without padding; labels are not looked at."""
        if not features:
            return []
        rows = [{name: array for name, array in feature.items() if name in READ} for feature in features]
        size = min(self.batch_size, len(rows))
        sizes = BUCKETS, self.length, size, self.pad
        batches = FeatureBatches(rows, *sizes, is_row_alone=self.is_row_alone, sentences=self.sentences)
        to_devices = lambda batch: jax.tree.map(jnp.asarray, batch)  # noqa: E731
        return evaluate_outputs(self.step, self.params, batches.evaluation(0, 1), to_devices, self.token_outputs)[1]
