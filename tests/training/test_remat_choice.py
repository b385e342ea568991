"""Tests that a run with `model.remat` 'auto' takes the first policy that fits, and that all policies train equally."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from efficient_attention.config.model import REMAT_POLICIES
from efficient_attention.models.device_memory import format_bytes, program_bytes
from efficient_attention.training import remat_choice
from efficient_attention.training.loop import train
from efficient_attention.training.remat_choice import StepWithinMemory, policies_to_try
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.state import TrainState
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from tests.tolerances import assert_close
from tests.training.tiny_run import tiny_config

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts
FIELDS: dict[str, Any] = {
    'model.remat': 'auto',
    'data.held_out': 0.0,
    'data.length': 64,
    'model.max_length': 64,
    'train.steps': 4,
    'checkpoint.every_steps': 2,
}


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return build_run(tiny_config(tmp_path_factory.mktemp('remat'), **FIELDS), jax.devices()[:1])


@pytest.fixture(scope='module')
def programs(run: Run) -> dict[str, jax.stages.Compiled]:
    """Returns the training step compiled with each policy."""
    step, batch = StepWithinMemory(run, print, {}), first_batch(run)
    return {policy: step.compile_policy(policy, run.abstract_state, batch) for policy in REMAT_POLICIES}


@pytest.fixture(scope='module')
def start(run: Run) -> TrainState:
    return jax.device_get(run.init_random_state())


def first_batch(run: Run) -> dict[str, jax.Array]:
    return run.put_batch_on_devices(next(run.task.training_batches(0, 1, 0, 1)))


@pytest.fixture
def compiled(programs: dict, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes steps reuse the programs; returns the list of policies for which a step asks."""
    asked: list[str] = []

    def compile_policy(_step: StepWithinMemory, policy: str, _state: TrainState, _batch: Any) -> jax.stages.Compiled:
        asked.append(policy)
        return programs[policy]

    monkeypatch.setattr(StepWithinMemory, 'compile_policy', compile_policy)
    return asked


def limit_memory(monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    monkeypatch.setattr(remat_choice, 'device_memory_limit', lambda _: limit)


@pytest.mark.parametrize('policy', [*REMAT_POLICIES, 'nothing'])
def test_the_first_policy_that_fits_is_taken_and_all_train_equally(
    policy: str,
    run: Run,
    start: TrainState,
    programs: dict,
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    sizes = [program_bytes(programs[one]) for one in REMAT_POLICIES]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    limit = program_bytes(programs[policy]) if policy in programs else sizes[-1] - 1
    limit_memory(monkeypatch, limit)
    lines: list[str] = []
    step, batch = StepWithinMemory(run, lines.append, {}), first_batch(run)
    state, metrics = step(jax.device_put(start, run.shardings), batch)
    step(state, batch)
    taken = policy if policy in programs else REMAT_POLICIES[-1]
    tried = REMAT_POLICIES[: REMAT_POLICIES.index(taken) + 1]
    assert compiled == list(tried)  # the second step runs the same program
    needed = ', '.join(f'{one!r} needs {format_bytes(program_bytes(programs[one]))}' for one in tried)
    fault = '' if policy in programs else ', so the run may end for lack of memory'
    assert lines == [f'model.remat=auto chose {taken!r}: {needed}; a device has {format_bytes(limit)}{fault}']
    _, expected = programs['none'](jax.device_put(start, run.shardings), batch)
    assert_close(metrics['gradient_norm'], expected['gradient_norm'], gradient=True)


def test_a_policy_that_the_compiler_refuses_is_not_taken(run: Run, programs: dict, monkeypatch: pytest.MonkeyPatch):
    def compile_policy(_step: StepWithinMemory, policy: str, *_: Any) -> jax.stages.Compiled:
        if policy == 'none':
            raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Ran out of memory')
        return programs[policy]

    monkeypatch.setattr(StepWithinMemory, 'compile_policy', compile_policy)
    lines: list[str] = []
    assert StepWithinMemory(run, lines.append, {}).compile_within_memory(run.abstract_state, {}) is programs['dots']
    assert lines[0].startswith("model.remat=auto chose 'dots': 'none' needs more than the compiler allows, 'dots' ")
    assert lines[0].endswith('; the memory of this device is not known')


def test_an_accelerator_starts_with_dots(
    run: Run, programs: dict, compiled: list[str], monkeypatch: pytest.MonkeyPatch
):
    """On an H200, a step with 'dots' takes less time and memory than with 'none' (docs/results/scaling.md)."""
    assert policies_to_try('gpu') == policies_to_try('tpu') == ('dots', 'full')
    limit_memory(monkeypatch, program_bytes(programs['none']))
    for platform, taken in (('cpu', 'none'), ('gpu', 'dots')):
        policies = {'cpu': policies_to_try(platform)}  # as if this CPU were the other platform
        monkeypatch.setattr(remat_choice, 'policies_to_try', policies.__getitem__)
        program = StepWithinMemory(run, print, {}).compile_within_memory(run.abstract_state, {})
        assert program is programs[taken] and compiled[-1] == taken


def test_processes_take_a_policy_that_fits_all(
    run: Run, programs: dict, compiled: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remat_choice, 'gather_from_peers', lambda text: [text, 'fits' if compiled[1:] else 'too large'])
    assert StepWithinMemory(run, print, {}).compile_within_memory(run.abstract_state, {}) is programs['dots']


def test_a_run_resumes_with_another_policy(
    tmp_path: Path, programs: dict, compiled: list[str], monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    config, devices = tiny_config(tmp_path, **FIELDS), jax.devices
    monkeypatch.setattr(jax, 'devices', lambda *names: devices(*names)[:1])
    train(config, tmp_path / 'whole')
    shutil.copytree(tmp_path / 'whole', tmp_path / 'resumed')
    shutil.rmtree(tmp_path / 'resumed' / 'checkpoints' / '4')
    limit_memory(monkeypatch, program_bytes(programs['full']))
    train(config, tmp_path / 'resumed')
    assert compiled == ['none', *REMAT_POLICIES]
    assert "model.remat=auto chose 'full'" in capfd.readouterr().err
    shapes = build_run(config).abstract_state
    whole, resumed = (
        CheckpointReader(tmp_path / name).restore(shapes, 4).state.params for name in ('whole', 'resumed')
    )
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5), whole, resumed)
