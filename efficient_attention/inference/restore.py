"""Restores a trained model from its workdir: from config.json, the tokenizer files and a checkpoint. No Python file is
run.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.field_metadata import CHANGEABLE, TRAINING_ONLY
from efficient_attention.config.run import RunConfig
from efficient_attention.data.text.text_units import TextUnits
from efficient_attention.inference.evaluate import Evaluation, make_evaluation
from efficient_attention.interop.workdir_import import parse_requested_checkpoint
from efficient_attention.models.device_memory import check_fits, state_bytes
from efficient_attention.models.sharding import abstract_arrays, make_mesh
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from efficient_attention.tasks.registry import make_task
from efficient_attention.tasks.task import Task
from efficient_attention.workdir.checkpoint_average import AVERAGED, AverageChoice
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, Wanted
from efficient_attention.workdir.config_file import marked_run_fields, read_config, with_new_field_defaults
from efficient_attention.workdir.fingerprint import TEACHER, compare_fingerprints
from efficient_attention.workdir.model_params import restore_params


class RestoredRun(NamedTuple):
    """A restored run: its evaluation, and the parameters of one step or the mean parameters of several steps."""

    evaluation: Evaluation
    params: Any
    step: int | None  # None = a model folder, whose parameters are of no step
    averaged: tuple[int, ...] = ()  # steps whose parameters were averaged; () = no averaging


def restore(
    workdir: Path,
    *,
    wanted: Wanted | AverageChoice = None,
    config: RunConfig | None = None,
    units: TextUnits | None = None,
) -> RestoredRun:
    """Returns a run's evaluation and the parameters of a checkpoint, on the devices of this machine.

    Args:
        workdir: a folder that `train` wrote.
        wanted: a number of updates, the best step, or the mean of the last steps; None = the newest step.
        config: replaces the workdir's config; it may differ only in fields that do not change the parameters.
        units: the vocabulary of a language model that is evaluated on other text than its own, which `config` names;
            None = on its own held-out text.

    Raises:
        InputError: the run or checkpoint is missing, the checkpoint does not fit the config, the data has changed, or
            the evaluation's batch does not divide over the devices.
    """
    config = config or read_config(workdir)
    mesh = make_mesh(config.mesh)
    task = make_task(config, units)
    evaluation = make_evaluation(config, task, mesh)
    params = abstract_params(task, mesh)
    check_fits(mesh, {'parameters': state_bytes(params)})
    lay_out = functools.partial(abstract_arrays, mesh=mesh)
    trained = config if units is None else dataclasses.replace(config, data=read_config(workdir).data)
    restored = restore_params(CheckpointReader(workdir), trained, params, wanted, lay_out)
    other_text = () if units is None else ('text',)
    compare_fingerprints(
        with_new_field_defaults(restored.record.get('fingerprint', {})),
        {'config': to_dict(trained)} | task.fingerprint,
        where=str(workdir),
        changeable=(*marked_run_fields(CHANGEABLE), *marked_run_fields(TRAINING_ONLY), TEACHER, *other_text),
        advice='put back what was changed since',
    )
    return RestoredRun(evaluation, restored.state, restored.step, tuple(restored.record.get(AVERAGED, ())))


def abstract_params(task: Task, mesh: Mesh) -> Any:
    """Returns the shapes, dtypes and shardings of the parameters of a task's model."""
    return abstract_arrays(jax.eval_shape(lambda: nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(0))))), mesh)


def restore_for_inference(
    workdir: Path, config: RunConfig, checkpoint: str, make_model: Callable[[], nnx.Module]
) -> tuple[nnx.GraphDef, Any]:
    """Returns a model's graph definition and a checkpoint's parameters, laid out for inference on the first device.

    No data files are read.

    Args:
        workdir: a folder that `train` wrote.
        config: the run's config.
        checkpoint: 'last', 'best' by the config's `checkpoint.best_metric`, a step's number, or 'average-5' for the
            mean of the last 5; '' = the best if one is known, else the last.
        make_model: returns the model; only its shapes are used, no parameters are initialised.
    """
    reader = CheckpointReader(workdir)
    wanted = parse_requested_checkpoint(reader, config, checkpoint)
    graph, state = nnx.split(nnx.eval_shape(make_model))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def lay_out(shapes: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), shapes)

    abstract = lay_out(nnx.to_pure_dict(state))
    return lay_out_for_inference(graph, restore_params(reader, config, abstract, wanted, lay_out).state)
