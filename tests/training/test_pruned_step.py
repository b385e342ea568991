"""A step of a run that prunes: its penalty is that of the whole batch, however that is split."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.models.sharding import path_name
from efficient_attention.training.run import build_run
from efficient_attention.training.state import TrainState
from efficient_attention.training.step import jit_train_step
from tests.tolerances import assert_close
from tests.training.tiny_fine_tuning import tiny_config


def step_of(config: RunConfig, devices: int) -> tuple[TrainState, dict[str, Any]]:
    run = build_run(config, jax.devices()[:devices])
    batch = run.on_devices(next(run.task.training_batches(0, 1, 0, 1)))
    return jax.device_get(jit_train_step(run)(run.drawn_state(), batch))


@pytest.mark.lenient_promotion
@pytest.mark.parametrize('method', ['movement', 'soft_movement', 'l0'])
def test_a_pruned_step_is_the_same_on_any_mesh_and_in_parts(tmp_path: Path, method: str):
    penalty = {} if method == 'movement' else {'prune.penalty': 3.0}
    fields = {'prune.method': method, 'prune.begin': 0.0, 'prune.end': 0.0, 'train.batch_size': 16}
    config = tiny_config(tmp_path, **fields, **penalty, **{'optimizer.warmup_steps': 0})

    alone, metrics = step_of(config, 1)
    assert metrics['loss'] == pytest.approx(metrics['fine_tuning_loss'] + metrics.get('prune_penalty', 0.0), rel=1e-5)
    assert (metrics.get('prune_penalty', 0.0) > 1.0) == bool(penalty)
    meshed = dataclasses.replace(config, mesh=MeshConfig(fsdp=2, tensor=2))
    parted = dataclasses.replace(meshed, train=dataclasses.replace(config.train, micro_batches=2))
    state, others = step_of(parted, 8)
    assert_close(others['loss'], metrics['loss'])
    assert_close(others['gradient_norm'], metrics['gradient_norm'])
    assert set(state.scores) == set(alone.scores) == {'encoder'}
    # What Adam remembers of a first step is a share of the gradient, of weights and of scores.
    for one, its in zip(first_moments(state), first_moments(alone), strict=True):
        np.testing.assert_allclose(one, its, rtol=1e-3, atol=1e-3 * max(np.abs(its).max(), 1e-6))


@pytest.mark.parametrize('method', ['movement', 'random'])
def test_scores_have_moments_where_they_are_trained_alone(tmp_path: Path, method: str):
    config = tiny_config(tmp_path, **{'prune.method': method, 'prune.begin': 0.0, 'prune.end': 0.0})
    state = build_run(config, jax.devices()[:1]).abstract_state
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.opt_state)]
    assert state.scores and any('/scores/' in name for name in names) == (method == 'movement')


def first_moments(state: TrainState) -> list[np.ndarray]:
    """Adam's means of gradients, scores and all."""
    [moments] = [mu for path, mu in optax.tree_utils.tree_get_all_with_path(state.opt_state, 'mu')]
    assert len(jax.tree.leaves(moments)) == len(jax.tree.leaves(state.trained))
    return jax.tree.leaves(moments)


@pytest.mark.lenient_promotion
@pytest.mark.parametrize('fields', [{'model.quantization': 'int8'}, {'model.ranks': ('up=4', 'token=5')}], ids=str)
def test_a_rounded_or_factored_step_is_the_same_on_any_mesh_and_in_parts(tmp_path: Path, fields: dict[str, Any]):
    """Of rounded operands up to a code here and there."""
    config = tiny_config(tmp_path, **fields, **{'train.batch_size': 16, 'optimizer.warmup_steps': 0})
    near = {'rtol': 0.02, 'atol': 1e-3} if 'model.quantization' in fields else {'rtol': 1e-4, 'atol': 1e-5}
    _, metrics = step_of(config, 1)
    meshed = dataclasses.replace(config, mesh=MeshConfig(fsdp=2, tensor=2))
    parted = dataclasses.replace(meshed, train=dataclasses.replace(config.train, micro_batches=2))
    _, others = step_of(parted, 8)
    for name in ('loss', 'gradient_norm'):
        np.testing.assert_allclose(others[name], metrics[name], **near)
