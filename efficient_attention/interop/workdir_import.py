"""Reads a trained model from a training run's workdir: its config, prediction heads, thresholds, and the parameters of
one checkpoint.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.field_metadata import unread_fields
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.preparation.cache_folder import TARGET_TOKENIZER, TOKENIZER
from efficient_attention.errors import InputError
from efficient_attention.interop.config_import import read_config_json
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, OUR_EXAMPLES, OUR_PAIRS, TEXT_TO_TEXT
from efficient_attention.interop.tensor_conversion import CheckpointHeads, parameter_shapes
from efficient_attention.interop.trained_model import Pretrained
from efficient_attention.models.device_memory import check_host_fits
from efficient_attention.workdir.checkpoint_average import AverageChoice, last_complete_steps, parse_checkpoint_choice
from efficient_attention.workdir.checkpoint_reader import BEST, LAST, CheckpointReader, Wanted
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.model_params import restore_params

READ = ('pretraining', 'fine_tuning', 'text_to_text')  # the tasks that train a model with an encoder
Params = dict[str, Any]
THRESHOLD = '_threshold'  # names of threshold metrics end with this text


def read_model_run_config(workdir: Path) -> RunConfig:
    """Returns the config of a run whose model can be opened outside the run.

    Raises:
        InputError: there is no run, or the run trained a bidirectional language model, but not over a tokenizer's
            pieces.
    """
    config = read_config(workdir)
    units = config.data.units
    if config.task == LANGUAGE_MODELLING and config.model.directions_apart and units != 'tokenizer':
        raise InputError(
            f'{workdir} holds a language model with model.directions_apart and data.units {units!r}; as an encoder, '
            "such a model needs data.units 'tokenizer'"
        )
    return config


def is_decoder_run(path: Path) -> bool:
    """Returns whether a folder is the workdir of a language model with a decoder, which reads no later tokens.

    Raises:
        InputError: the folder's config.json cannot be read.
    """
    if read_config_json(path).get('task') != LANGUAGE_MODELLING:
        return False
    return not read_config(path).model.directions_apart


def heads_of_run(config: RunConfig) -> CheckpointHeads:
    """Returns which prediction heads the model of a run has, and whether its encoder is a part of a larger model."""
    if config.task == 'fine_tuning':
        return CheckpointHeads(config.head)
    if config.task == 'text_to_text':
        return CheckpointHeads(has_decoder=True)
    if config.task == LANGUAGE_MODELLING:
        is_two_way = config.model.directions_apart
        return CheckpointHeads(has_two_ways=is_two_way, is_decoder=not is_two_way)
    has_pairs = config.data.pairs != 'none'
    return CheckpointHeads(has_masked_lm=True, has_pooler=has_pairs, has_pair=has_pairs)


def parse_requested_checkpoint(
    reader: CheckpointReader, config: RunConfig, checkpoint: str = ''
) -> Wanted | AverageChoice:
    """Returns the checkpoint that a user names: a step, the best step, or an average of steps.

    Arguments and errors are as in `workdir_params`.
    """
    metric, mode = config.checkpoint.best_metric, config.checkpoint.best_mode
    has_best = bool(metric) and reader.best_step(metric, mode) is not None
    return parse_checkpoint_choice(reader, checkpoint or (BEST if has_best else LAST), metric=metric, mode=mode)


def describe_checkpoint(workdir: Path, config: RunConfig, checkpoint: str = '') -> str:
    """Returns a short text that names the restored checkpoint, such as 'step 100' or 'mean of steps 80, 100'.

    Arguments and errors are as in `workdir_params`.
    """
    reader = CheckpointReader(workdir)
    wanted = parse_requested_checkpoint(reader, config, checkpoint)
    if isinstance(wanted, AverageChoice):
        return f'mean of steps {", ".join(map(str, last_complete_steps(reader, wanted.checkpoints)))}'
    return f'step {reader.resolve_step(wanted)}'


def checkpoint_thresholds(workdir: Path, config: RunConfig, checkpoint: str = '') -> dict[str, float]:
    """Returns the decision thresholds that an evaluation of the checkpoint chose on the validation set, or {}.

    Arguments are as in `workdir_params`.

    Raises:
        InputError: as `workdir_params`, or a mean of checkpoints is requested, whose checkpoints each chose thresholds.
    """
    reader = CheckpointReader(workdir)
    wanted = parse_requested_checkpoint(reader, config, checkpoint)
    metrics = reader.metrics_of_step(reader.resolve_step(None if isinstance(wanted, AverageChoice) else wanted))
    found = {name: value for name, value in metrics.items() if name.endswith(THRESHOLD)}
    if found and isinstance(wanted, AverageChoice):
        raise InputError(
            f'{workdir}: {", ".join(found)} was chosen for each checkpoint by itself, and a mean of checkpoints has '
            'none; choose one checkpoint (--checkpoint)'
        )
    return found


def workdir_params(workdir: Path, config: RunConfig, checkpoint: str = '') -> dict[str, Any]:
    """Loads the parameters of a run's checkpoint, as nested dicts of float32 NumPy arrays. Of a bidirectional language
    model, only the encoder's parameters are returned.

    Args:
        workdir: the folder.
        config: the run's config.
        checkpoint: 'last', 'best', a step or 'average-5', the mean of the last 5; '' = the best if one is known, else
            the last.

    Raises:
        InputError: the checkpoint does not exist, or its parameters do not match the config.
    """
    reader = CheckpointReader(workdir)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    heads = heads_of_run(config)
    shapes = parameter_shapes(config.model, heads)
    shapes = shapes['decoder'] if heads.is_decoder else shapes
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    check_host_fits(needed, f'{workdir}: its parameters')

    def lay_out(shapes: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), shapes)

    wanted = parse_requested_checkpoint(reader, config, checkpoint)
    restored = restore_params(reader, config, lay_out(shapes), wanted, lay_out)
    params: Params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), restored.state)
    if heads.is_decoder:
        return {'decoder': params}
    return {name: group for name, group in params.items() if name == 'encoder' or config.task in READ}


def read_workdir(path: Path, checkpoint: str) -> Pretrained:
    """Returns the trained model in a run's workdir, with the parameters of one checkpoint; raises InputError as
    `read_model_run_config` does.
    """
    config = read_model_run_config(path)
    is_two_way = config.model.directions_apart and config.task == LANGUAGE_MODELLING
    is_fine_tuned = config.task == 'fine_tuning'
    file = path / TOKENIZER
    problems = {'fine_tuning': config.examples.problem, 'text_to_text': TEXT_TO_TEXT}
    problems[LANGUAGE_MODELLING] = 'none' if is_two_way else LANGUAGE_MODELLING
    return Pretrained(
        model=without_output_layer_fields(config.model) if is_two_way else config.model,
        head=config.head if is_fine_tuned else HeadConfig(),
        labels=config.examples.labels if is_fine_tuned else (),
        problem=problems.get(config.task, 'fill_mask'),
        family='',
        tokenizer=file if file.is_file() else None,
        lowercase=config.data.lowercase,
        params=lambda: workdir_params(path, config, checkpoint),
        examples={
            name: getattr(config.examples, name)
            for name in OUR_EXAMPLES
            if getattr(config.examples, name) != getattr(ExamplesConfig(), name)
        },
        pairs={name: getattr(config.pairs, name) for name in OUR_PAIRS} if config.task == TEXT_TO_TEXT else {},
        thresholds=lambda: checkpoint_thresholds(path, config, checkpoint),
        origin=lambda: f'{path} {describe_checkpoint(path, config, checkpoint)}',
        run=config,
        target_tokenizer=path / TARGET_TOKENIZER if config.pairs.target_tokenizer else None,
    )


def without_output_layer_fields(model: ModelConfig) -> ModelConfig:
    """Returns the config of a bidirectional language model without the fields that only its output layer reads."""
    return dataclasses.replace(
        model, **{name: unread for name, (_, unread) in unread_fields(model, 'fine_tuning').items()}
    )
