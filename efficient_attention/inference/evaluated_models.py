"""Opens a trained model for an evaluation, from a run's workdir or from a Hugging Face folder of a language model.

A language model may be evaluated on text that the caller names, the source. Such text is held out as a whole.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from efficient_attention.config.data import DataConfig
from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.data.text.text_units import TextUnits
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate import make_evaluation
from efficient_attention.inference.language_models import imported_units, read_vocabulary
from efficient_attention.inference.pretrained_models import match_tree_structure
from efficient_attention.inference.restore import RestoredRun, abstract_params, restore
from efficient_attention.interop.config_import import read_config_json
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING
from efficient_attention.interop.huggingface_tensor_names import FAMILIES
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.interop.workdir_import import parse_requested_checkpoint
from efficient_attention.models.device_memory import check_fits, state_bytes
from efficient_attention.models.sharding import make_mesh
from efficient_attention.tasks.registry import make_task
from efficient_attention.workdir.checkpoint_reader import LAST, CheckpointReader
from efficient_attention.workdir.config_file import read_config

OF_FOLDERS = ('context', 'stride')  # fields of `EvalConfig` that a caller may set for a Hugging Face folder
# A folder states neither rows per batch nor positions per loss step. With these, GPT-2's logits take 0.4 GB at a time.
FOLDER_ROWS, FOLDER_CHUNK = 8, 256


class EvaluatedModel(NamedTuple):
    """The model of an evaluation: its config, and a function that restores it with a config of other `eval` fields."""

    config: RunConfig
    restore: Callable[[RunConfig], RestoredRun]


def open_evaluated_model(path: Path, checkpoint: str, source: str | None, protocol: Iterable[str]) -> EvaluatedModel:
    """Opens the model in a workdir or a Hugging Face folder for an evaluation; reads no parameters yet.

    Args:
        path: the folder.
        checkpoint: as in `evaluate_workdir`; a Hugging Face folder has only the last.
        source: text to evaluate a language model on, spelled as `data.source`; None = the run's own held-out data.
        protocol: names of the fields of `EvalConfig` that the caller replaces.

    Raises:
        InputError: there is no such model or checkpoint, or an option does not fit the model.
    """
    if source is not None and 'split' in protocol:
        raise InputError("split names a part of a run's own text, and source is other text; give one of the two")
    if is_language_model_folder(path):
        return open_model_folder(path, checkpoint, source, protocol)
    config = read_config(path)
    wanted = parse_requested_checkpoint(CheckpointReader(path), config, checkpoint)
    if source is None:
        return EvaluatedModel(config, lambda config: restore(path, wanted=wanted, config=config))
    if config.task != LANGUAGE_MODELLING:
        raise InputError(f'{path} holds a run of the task {config.task!r}; source names text for language models')
    config = with_source(config, source)
    units = read_vocabulary(config.data.units, path)
    return EvaluatedModel(config, lambda config: restore(path, wanted=wanted, config=config, units=units))


def is_language_model_folder(path: Path) -> bool:
    """Returns whether a path is a Hugging Face folder of a language model."""
    try:
        values = read_config_json(path)
    except InputError:
        return False
    family = FAMILIES.get(str(values.get('model_type')))
    return 'task' not in values and family is not None and family.is_language_model


def open_model_folder(path: Path, checkpoint: str, source: str | None, protocol: Iterable[str]) -> EvaluatedModel:
    """Opens the language model in a Hugging Face folder for an evaluation; see `open_evaluated_model`."""
    if source is None:
        raise InputError(
            f'{path} is a Hugging Face folder, which has no held-out text; name the text to evaluate on, such as '
            '--source=text:data/test.txt'
        )
    for name in protocol:
        if name not in OF_FOLDERS:
            raise InputError(f'{name} does not apply to {path}, a Hugging Face folder; context and stride do')
    pretrained = open_pretrained(path, '' if checkpoint == LAST else checkpoint)
    units = imported_units(path, pretrained)
    length = pretrained.model.max_length
    config = RunConfig(
        task=LANGUAGE_MODELLING,
        data=DataConfig(
            tokenizer=str(pretrained.tokenizer),
            vocab_size=units.size,
            lowercase=pretrained.lowercase,
            length=length,
        ),
        model=dataclasses.replace(pretrained.model, loss_chunk=FOLDER_CHUNK),
        eval=EvalConfig(batch_size=FOLDER_ROWS, context=length),
    )
    return EvaluatedModel(with_source(config, source), functools.partial(restore_folder, pretrained, units))


def with_source(config: RunConfig, source: str) -> RunConfig:
    """Returns the config of a language model with other text, all of which is held out."""
    if config.data.units != 'pixels':
        open_source(source, 'source')
    data = dataclasses.replace(config.data, source=source, held_out=1.0, test=0.0, splitting='documents')
    return dataclasses.replace(config, data=data, eval=dataclasses.replace(config.eval, split='held_out'))


def restore_folder(pretrained: Pretrained, units: TextUnits, config: RunConfig) -> RestoredRun:
    """Returns the evaluation of an imported language model, and its parameters on the devices of this machine."""
    mesh = make_mesh(config.mesh)
    task = make_task(config, units)
    evaluation = make_evaluation(config, task, mesh)
    shapes = abstract_params(task, mesh)
    check_fits(mesh, {'parameters': state_bytes(shapes)})
    found = match_tree_structure(shapes, pretrained.params()['decoder'], '')
    params = jax.tree.map(
        lambda leaf, array: jax.device_put(np.asarray(array, leaf.dtype), leaf.sharding), shapes, found
    )
    return RestoredRun(evaluation, params, None)
