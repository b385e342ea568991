"""Tests a step of a run that prunes: its penalty counts once for the whole batch, however the batch is split.

Movement pruning has no penalty; tests/distillation/test_teacher.py takes such a step together with a teacher.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.models.sharding import path_name
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.state import TrainState
from efficient_attention.training.step import jit_train_step
from tests.one_device import EIGHT
from tests.tolerances import assert_close
from tests.training.tiny_fine_tuning import tiny_config


class Step(NamedTuple):
    """The state before a step, the state after it, and its metrics."""

    start: TrainState
    state: TrainState
    metrics: dict[str, Any]


def first_step(config: RunConfig) -> Step:
    """Takes a run's first step on one device."""
    run = build_run(config)
    return step_from(run, jax.device_get(run.init_random_state()))


def on_a_mesh_and_in_parts(config: RunConfig, start: TrainState) -> Step:
    """Takes the step from `start` on eight devices, which split rows and kernels, in two micro-batches."""
    train = dataclasses.replace(config.train, micro_batches=2)
    meshed = dataclasses.replace(config, mesh=MeshConfig(fsdp=2, tensor=2), train=train)
    return step_from(build_run(meshed, EIGHT), start)


def step_from(run: Run, start: TrainState) -> Step:
    """Takes a run's step from this state."""
    batch = run.put_batch_on_devices(next(run.task.training_batches(0, 1, 0, 1)))
    return Step(start, *jax.device_get(jit_train_step(run)(jax.device_put(start, run.shardings), batch)))


@pytest.mark.lenient_promotion
@pytest.mark.parametrize('method', ['soft_movement', 'l0'])
def test_a_pruned_step_is_the_same_on_any_mesh_and_in_parts(tmp_path: Path, method: str):
    fields = {'prune.method': method, 'prune.begin': 0.0, 'prune.end': 0.0, 'prune.penalty': 3.0}
    config = tiny_config(tmp_path, **fields, **{'train.batch_size': 16, 'optimizer.warmup_steps': 0})

    start, alone, metrics = first_step(config)
    assert metrics['loss'] == pytest.approx(metrics['fine_tuning_loss'] + metrics['prune_penalty'], rel=1e-5)
    assert metrics['prune_penalty'] > 1.0
    _, state, others = on_a_mesh_and_in_parts(config, start)
    assert_close(others['loss'], metrics['loss'])
    assert_close(others['gradient_norm'], metrics['gradient_norm'])
    assert set(state.scores) == set(alone.scores) == {'encoder'}
    assert_same_moments(state, alone)


def assert_same_moments(state: TrainState, expected: TrainState) -> None:
    """Compares Adam's first moments, which after one step are a fixed share of the gradients of weights and scores."""
    for one, its in zip(first_moments(state), first_moments(expected), strict=True):
        np.testing.assert_allclose(one, its, rtol=1e-3, atol=1e-3 * max(np.abs(its).max(), 1e-6))


@pytest.mark.parametrize('method', ['movement', 'random'])
def test_scores_have_moments_where_they_are_trained_alone(tmp_path: Path, method: str):
    config = tiny_config(tmp_path, **{'prune.method': method, 'prune.begin': 0.0, 'prune.end': 0.0})
    state = build_run(config).abstract_state
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.opt_state)]
    assert state.scores and any('/scores/' in name for name in names) == (method == 'movement')


def first_moments(state: TrainState) -> list[np.ndarray]:
    """Returns Adam's first moments, including those of scores."""
    [moments] = [mu for path, mu in optax.tree_utils.tree_get_all_with_path(state.opt_state, 'mu')]
    assert len(jax.tree.leaves(moments)) == len(jax.tree.leaves(state.trainable_arrays))
    return jax.tree.leaves(moments)


@pytest.mark.lenient_promotion
@pytest.mark.parametrize('fields', [{'model.quantization': 'int8'}, {'model.ranks': ('up=4', 'token=5')}], ids=str)
def test_a_rounded_or_factored_step_is_the_same_on_any_mesh_and_in_parts(tmp_path: Path, fields: dict[str, Any]):
    """Rounding may put single operands on a neighbouring int8 code, so that case has a larger tolerance."""
    config = tiny_config(tmp_path, **fields, **{'train.batch_size': 16, 'optimizer.warmup_steps': 0})
    near = {'rtol': 0.02, 'atol': 1e-3} if 'model.quantization' in fields else {'rtol': 1e-4, 'atol': 1e-5}
    start, _, metrics = first_step(config)
    others = on_a_mesh_and_in_parts(config, start).metrics
    for name in ('loss', 'gradient_norm'):
        np.testing.assert_allclose(others[name], metrics[name], **near)
