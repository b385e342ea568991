"""Evaluation of a workdir: every held-out example, exactly once, with a checkpoint's parameters."""

import dataclasses
from pathlib import Path

import jax

from efficient_attention.evaluation.evaluate import evaluate
from efficient_attention.training.restore import restore_run
from efficient_attention.training.sharding import MeshConfig
from efficient_attention.training.workdir import read_config


def evaluate_workdir(workdir: Path, *, step: int | None = None, batch_size: int | None = None) -> dict[str, float]:
    """The held-out metrics of a checkpoint and its 'step'; equal up to rounding for every batch size and device count.

    Raises:
        InputError: as `restore_run`, or the batch does not divide over the devices.
    """
    config = read_config(workdir)
    if batch_size is not None:
        config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, batch_size=batch_size))
    trained = restore_run(workdir, step=step, config=dataclasses.replace(config, mesh=MeshConfig()))
    run = trained.run
    batches = run.task.evaluation_batches(jax.process_index(), jax.process_count())
    means = evaluate(run.eval_step(), trained.params, batches, run.on_devices)
    return {'step': trained.step} | run.task.finish_metrics(means)
