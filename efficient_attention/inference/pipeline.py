"""Pipelines: functions from plain Python inputs to the predictions of a fine-tuned or pretrained checkpoint."""

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
from efficient_attention.data.examples.text_encoder import TextEncoder, encoding_to_arrays, unknown_words_note
from efficient_attention.errors import InputError, advice_on_name, require_at_least
from efficient_attention.inference.attention_pipeline import open_attention_pipeline
from efficient_attention.inference.attribution_pipeline import open_attribution_pipeline
from efficient_attention.inference.decoding_options import log_settings
from efficient_attention.inference.evaluate import evaluate_outputs, make_output_step
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.generation_pipelines import (
    TextGenerationPipeline,
    TextToTextPipeline,
    decoding_options,
    generation_options,
)
from efficient_attention.inference.keyword_option_types import PipelineOptions
from efficient_attention.inference.per_item_errors import check_text, map_items
from efficient_attention.inference.pretrained_models import (
    pretrained_encoder,
    pretrained_module,
    pretrained_text_encoder,
    row_length,
)
from efficient_attention.interop.config_import import default_labels
from efficient_attention.interop.config_json_keys import MULTI_LABEL, SEVERAL
from efficient_attention.interop.generation_config import task_prefixes, task_settings
from efficient_attention.interop.pretrained import Pretrained, check_encoder, open_pretrained
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.tasks.fine_tuning import check_global_token_count, check_head_output_count
from efficient_attention.tasks.problems.multi_output import MultiOutputProblem
from efficient_attention.tasks.problems.one_label import first_arena_dataset
from efficient_attention.tasks.problems.problem import Feature, Problem
from efficient_attention.tasks.problems.registry import make_problem
from efficient_attention.workdir import print_plain_log_lines

READ = ('tokens', 'token_types', 'lengths', 'is_global')  # Only these arrays of an example are inputs of the model.
POOLING = ('none', 'first', 'mean')
# For each pipeline, the kinds of fine-tuning (`examples.problem`) whose checkpoints it can load.
PROBLEMS = {
    'text-classification': ('classification', 'regression', *SEVERAL),
    'token-classification': ('token_classification',),
    'question-answering': ('question_answering', 'multi_hop'),
    'multiple-choice': ('multiple_choice',),
}
TEXT_GENERATION = 'text-generation'
ATTENTION, ATTRIBUTION = 'attention', 'attribution'
TEXT_TO_TEXT_TASKS = ('text2text-generation', 'translation', 'summarization')
TRANSLATION = re.compile(r'translation_\w+_to_\w+')  # task names in the configs of released T5 models
# input formats of these fine-tuning problems; all other problems have the input format 'table'
FORMATS = {'question_answering': 'squad', 'multi_hop': 'hotpotqa'}


def pipeline(
    task: str,
    path: str | Path,
    *,
    checkpoint: str = '',
    batch_size: int = 0,
    length: int = 0,
    **options: Unpack[PipelineOptions],
) -> Any:
    """Returns a pipeline: a function from one input, or a list of inputs, to the predictions of a checkpoint.

    A text longer than a row is read in windows, not cut. If `options` say otherwise, or a question is too long, a
    UserWarning reports what was cut or left out.

        'question-answering'    {'question', 'context'} -> {'answer', 'score', 'start', 'end'}, in characters
        'text-classification'   text, or (text, text) -> {'label', 'score', 'scores'}; {'score'} for regression;
                                {'scores'} for several outputs; {'labels', 'scores'} for several labels per row
        'token-classification'  text, or a tuple of its words -> [{'word', 'label', 'score', 'start', 'end'}, ...]
        'multiple-choice'       {'context', 'choices'} -> {'choice', 'score', 'scores'}
        'fill-mask'             text with [MASK] -> for each mask [{'token', 'score'}, ...]
        'feature-extraction'    text -> vectors [tokens, D]; [D] with pooling='first' or 'mean'
        'text2text-generation'  text -> {'text', 'score', 'is_ended'}; a list of the `best` texts if `best` is above 1.
                                'summarization', 'translation' and names such as 'translation_en_to_de' are the same,
                                with the prefix that a released T5's config.json has for a task of that name
        'text-generation'       text -> {'text'}, the text with a language model's continuation
        'attention'             text, or (text, text) -> for each window, the tokens and what each layer and head reads:
                                weights, queries and keys; see `AttentionPipeline`
        'attribution'           text, or (text, text) -> for each window, what each token adds to a classifier's logit;
                                see `AttributionPipeline`

    Args:
        task: one of the names above.
        path: a Hugging Face folder or a workdir.
        checkpoint: a workdir's checkpoint: 'last', 'best', a step or 'average-5', the mean of the last 5; '' = the best
            if one is known, else the last.
        batch_size: rows at a time; 0 = 32.
        length: maximum tokens per row; 0 = the model's position limit, else its training length, else 512. For
            'text2text-generation', the maximum tokens per source, see `open_translator`.
        options: 'fill-mask' has `top`, 'feature-extraction' has `pooling`. 'text2text-generation' has `prefix`,
            `alignments` and the fields of `DecodingOptions` (inference/decoding_options.py), such as `beams`, `best`
            and `alpha`. 'text-generation' has `max_tokens`, `temperature`, `top_k`, `top_p`, `seed`, `beams` and
            `best`. 'attention' has `layers` and `heads`, numbers from 0; 'attribution' has `label`, whose
            logit is explained. The others have the fields of a config's `examples` group.

    Raises:
        InputError: the task is unknown, or the checkpoint does not support it.
    """
    print_plain_log_lines()
    require_at_least(0, 'batch_size', batch_size)
    known = ('fill-mask', 'feature-extraction', *PROBLEMS, *TEXT_TO_TEXT_TASKS, TEXT_GENERATION, ATTENTION, ATTRIBUTION)
    if task not in known and not TRANSLATION.fullmatch(task):
        raise InputError(f'pipeline {task!r} is unknown; {advice_on_name(task, known)}')
    if task == TEXT_GENERATION:
        if batch_size or length:
            raise InputError(f'{task} reads one prompt at a time, of any length; leave out batch_size and length')
        return TextGenerationPipeline(Path(path), generation_options(options), checkpoint=checkpoint)
    if task in (ATTENTION, ATTRIBUTION) and batch_size:
        raise InputError(f'{task} reads one window at a time; leave out batch_size')
    if task == ATTENTION:
        return open_attention_pipeline(Path(path), checkpoint, {**options, 'length': length})
    if task == ATTRIBUTION:
        return open_attribution_pipeline(Path(path), checkpoint, {**options, 'length': length})
    size = {'batch_size': batch_size or 32, 'length': length}
    return make_pipeline(task, Path(path), open_pretrained(Path(path), checkpoint), options, **size)


def make_pipeline(
    task: str, path: Path, pretrained: Pretrained, options: Mapping[str, Any], *, batch_size: int, length: int
) -> Any:
    """Returns the pipeline of a loaded checkpoint for this task.

    `path` is the checkpoint's path, for error messages.
    """
    if task in TEXT_TO_TEXT_TASKS or TRANSLATION.fullmatch(task):
        searched = {**options, 'batch_size': batch_size}
        prefix, alignments = searched.pop('prefix', None), searched.pop('alignments', False)
        prefix = task_prefixes(pretrained.extra).get(task) if prefix is None else prefix
        log_settings(
            path, f'settings of {task} in its config.json that are not used', task_settings(pretrained.extra, task)
        )
        decoding = decoding_options(pretrained, path, searched)
        return TextToTextPipeline(pretrained, path, decoding, prefix=prefix, alignments=alignments, length=length)
    check_encoder(path, pretrained)
    encoder = pretrained_text_encoder(pretrained, path)
    limit = pretrained.model.position_limit
    if limit is not None and length > limit:
        raise InputError(f'length is {length}; the model has {limit} positions')
    size: dict[str, Any] = {'length': length or row_length(pretrained), 'batch_size': batch_size}
    if task == 'fill-mask':
        return MaskPipeline(pretrained, path, **size, **options)
    if task == 'feature-extraction':
        return VectorPipeline(pretrained, encoder, **size, **options)
    if pretrained.problem not in PROBLEMS[task]:
        raise InputError(f'{path} was trained for {pretrained.problem!r}; {task} needs {" or ".join(PROBLEMS[task])}')
    return TextPipeline(pretrained, encoder, trained_examples_config(pretrained, options), **size)


def trained_examples_config(pretrained: Pretrained, options: Mapping[str, Any]) -> ExamplesConfig:
    """Returns the `examples` config group with which a checkpoint was trained, without the names of its data files."""
    has_global = pretrained.model.global_tokens > 0
    outside = ExamplesConfig(has_global=has_global, **pretrained.examples)
    trained = pretrained.run.examples if pretrained.run else outside
    problem = 'classification' if pretrained.problem in SEVERAL else pretrained.problem
    fixed: dict[str, Any] = {'problem': problem, 'labels': pretrained.labels}
    fixed['overlong'] = 'truncate' if trained.towers else 'windows'  # each text of a two-tower model must fit one row
    unread: dict[str, Any] = {'train': '', 'dev': '', 'test': '', 'name': '', 'cache': 'cache'}
    is_glue_pair = trained.format == 'glue' and len(glue_task(trained.name).texts) == 2
    if is_glue_pair or (trained.format == ARENA and first_arena_dataset(trained).texts == 2):
        unread['text_pair'] = 'text_pair'
    unread['format'] = FORMATS.get(pretrained.problem, 'table')
    try:
        return dataclasses.replace(trained, **unread, **{**fixed, **options})
    except TypeError:
        fields = ', '.join(field.name for field in dataclasses.fields(ExamplesConfig))
        raise InputError(f'unknown option among {", ".join(options)}; known: {fields}') from None


def with_default_labels(examples: ExamplesConfig, head: HeadConfig) -> ExamplesConfig:
    """Returns the `examples` config group with labels 'LABEL_0', 'LABEL_1', ... if the head predicts classes that have
    no names.
    """
    is_named = examples.labels or examples.train or examples.format == 'glue'
    has_labels = head.kind == 'token' or (head.kind in OF_ROWS and head.outputs > 1)
    if is_named or not has_labels:
        return examples
    return dataclasses.replace(examples, labels=default_labels(head.outputs))


class TextPipeline:
    """A pipeline for a fine-tuned model, such as classification; uses the decision thresholds that the checkpoint
    stores.
    """

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
        self.takes_any = pretrained.run is None  # an imported model may accept one text or a pair of texts
        self.config, self.head = config, head = pretrained.model, pretrained.head
        model = pretrained_module(lambda rngs: FineTuningModel(config, head, rngs=rngs), pretrained)
        self.predict = Predictor(
            model,
            length=length,
            pad=encoder.pad,
            batch_size=batch_size,
            is_row_alone=config.is_affected_by_padding,
            sentences=examples.sentences,
        )

    def encode_rows(self, task: Problem[Any, Any], examples: Sequence[Any]) -> list[Feature]:
        """Returns examples encoded as token rows; raises InputError if a text or its number of global tokens does not
        fit the model.
        """
        features = task.encode(examples)
        check_global_token_count(features, self.config)
        return features

    def outputs(self, features: Sequence[Feature]) -> list[dict[str, np.ndarray]]:
        """Returns the model's outputs for each token row; raises InputError if a row has too many global tokens."""
        check_global_token_count(features, self.config)
        return self.predict(features)

    def make_task(self, examples: ExamplesConfig) -> Problem[Any, Any]:
        """Returns the fine-tuning problem for these examples; raises InputError if their number of labels differs from
        the model's.
        """
        task = self._make_problem(examples)
        check_head_output_count(task, self.head)
        for name in task.thresholds:
            task.thresholds[name] = self.thresholds.get(name, task.thresholds[name])
            task.chooses_thresholds = task.chooses_thresholds and name not in self.thresholds
        return task

    def _make_problem(self, examples: ExamplesConfig) -> Problem[Any, Any]:
        if self.problem not in SEVERAL:
            return make_problem(with_default_labels(examples, self.head), self.encoder, self.length)
        named = dataclasses.replace(examples, labels=examples.labels or default_labels(self.head.outputs))
        return MultiOutputProblem(named, self.encoder, self.length, is_multi_label=self.problem == MULTI_LABEL)

    def __call__(self, inputs: Any) -> Any:
        """Returns the prediction for an input, or a list of predictions for a list; warns if text was cut or left
        out.
        """
        answers, losses = self.answers(inputs if isinstance(inputs, list) else [inputs])
        for loss in losses:
            warnings.warn(loss, UserWarning, stacklevel=2)
        return answers if isinstance(inputs, list) else answers[0]

    def answers(self, inputs: list[Any]) -> tuple[list[Any], list[str]]:
        """Returns the predictions for a list of inputs, and warning lines about text that was cut or left out."""
        is_pair = self.takes_any and bool(inputs) and 'text_pair' in pair_fields(inputs[0])
        column = self.examples.text_pair or ('text_pair' if is_pair else '')
        task = self.make_task(dataclasses.replace(self.examples, text_pair=column))
        examples = map_items(inputs, task.example_from_python)
        try:
            features = self.encode_rows(task, examples)
        except InputError:
            # Each example is encoded separately, so that the error message names the bad example.
            map_items(examples, lambda example: self.encode_rows(task, [example]))
            raise
        predictions = task.predict_from_outputs(examples, features, self.outputs(features))
        return [
            task.prediction_to_python(prediction) for prediction in predictions
        ], task.dropped_data_notes + unknown_words_note(self.encoder, features)


def pair_fields(value: Any) -> tuple[str, ...]:
    """Returns the names of an input's fields: the keys of a dict, or 'text' and 'text_pair' for a tuple of two
    texts.
    """
    if isinstance(value, dict):
        return tuple(value)
    return ('text', 'text_pair') if isinstance(value, tuple) and len(value) == 2 else ()


class VectorPipeline:
    """A pipeline that returns an encoder's hidden states for texts, as one vector per token or pooled to one vector."""

    def __init__(
        self, pretrained: Pretrained, encoder: TextEncoder, *, length: int, batch_size: int, pooling: str = 'none'
    ) -> None:
        if pooling not in POOLING:
            raise InputError(f'pooling is {pooling!r}; known: {", ".join(POOLING)}')
        self.encoder, self.length, self.pooling = encoder, length, pooling
        model = pretrained_encoder(pretrained)
        alone = pretrained.model.is_affected_by_padding
        self.predict = Predictor(model, length=length, pad=encoder.pad, batch_size=batch_size, is_row_alone=alone)

    def __call__(self, inputs: str | list[str]) -> Any:
        """Returns the vectors of a text's tokens, float32 [tokens, D] with special tokens, or a pooled vector [D]; for
        a list of texts, a list.
        """
        if not isinstance(inputs, list):
            return self([inputs])[0]
        map_items(inputs, check_text)
        features = [self.features(text) for text in inputs]
        outputs = iter(self.predict([feature for rows in features for feature in rows]))
        return [self.pool_windows([next(outputs)['vectors'] for _ in rows]) for rows in features]

    def features(self, text: str) -> list[Feature]:
        """Returns a text encoded as token rows; a text that is longer than one row becomes several adjacent windows."""
        [encoding] = self.encoder.encode([text])
        encoding.truncate(self.length - self.encoder.special_token_count(is_pair=False))
        return [encoding_to_arrays(self.encoder.row(window)) for window in (encoding, *encoding.overflowing)]

    def pool_windows(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the vectors of a text, or their pooled vector, from the vectors of the text's windows."""
        if self.pooling == 'first':
            return vectors[0][0]
        joined = np.concatenate(vectors)
        return joined.mean(axis=0) if self.pooling == 'mean' else joined


class MaskPipeline:
    """A pipeline that returns a masked language model's most probable tokens for each [MASK] of a text."""

    def __init__(self, pretrained: Pretrained, path: Path, *, length: int, batch_size: int, top: int = 5) -> None:
        self.filler, self.top, self.batch_size = MaskFiller(path, pretrained=pretrained), top, batch_size
        self.filler.length = length

    def __call__(self, inputs: str | list[str]) -> Any:
        """Returns, for each mask of a text, a list of the most probable tokens with their scores; for a list of texts,
        a list of these lists.
        """
        if not isinstance(inputs, list):
            return self([inputs])[0]
        return [
            [[{'token': one.token, 'score': one.probability} for one in candidates] for candidates in masks]
            for masks in self.filler.fill_masks(inputs, self.top, batch_size=self.batch_size)
        ]


class Predictor:
    """Runs a model on token rows of different lengths, in padded batches.

    Attributes:
        length: tokens of the longest row that the model takes.
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
        """Stores the model; `is_row_alone` and `sentences` are passed to `FeatureBatches`, which documents them."""
        graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)
        self.length, self.pad, self.batch_size, self.is_row_alone = length, pad, batch_size, is_row_alone
        self.token_outputs, self.sentences = model.token_outputs, sentences
        self.step = jax.jit(make_output_step(graph))

    def __call__(self, features: Sequence[Feature]) -> list[dict[str, np.ndarray]]:
        """Returns the model's outputs for each row, in the order of the rows and without padding; labels in the rows
        are ignored.
        """
        if not features:
            return []
        rows = [{name: array for name, array in feature.items() if name in READ} for feature in features]
        size = min(self.batch_size, len(rows))
        sizes = BUCKETS, self.length, size, self.pad
        batches = FeatureBatches(rows, *sizes, is_row_alone=self.is_row_alone, sentences=self.sentences)
        to_devices = lambda batch: jax.tree.map(jnp.asarray, batch)  # noqa: E731
        return evaluate_outputs(
            self.step, self.params, batches.evaluation_batches(0, 1), to_devices, self.token_outputs
        )[1]
