"""Tests that a profile has the asked-for steps and the layers' names, and that it cannot end a run."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError
from efficient_attention.training.loop import Trainer
from efficient_attention.training.optimizer import make_optimizer
from efficient_attention.training.state import initial_state
from efficient_attention.training.step import make_train_step
from efficient_attention.training.step_profile import FOLDER, StepProfile, check_profiled_steps, steps_left_to_profile
from efficient_attention.training.throughput import Throughput
from efficient_attention.training.trace_operations import message_class, trace_lines
from tests.collectives import compiling_anew
from tests.training.test_step import BATCH, OBJECTIVE, model


@jax.jit
def train_step(x):
    with jax.named_scope('attention'):
        return x @ x


def run_steps(profiled: StepProfile, count: int) -> list[str]:
    """Runs steps as the training loop does, and returns the printed lines."""
    lines: list[str] = []
    trainer = SimpleNamespace(
        queue=SimpleNamespace(finish_all_steps=lambda: None),
        throughput=Throughput(tokens_per_step=1),
        progress=SimpleNamespace(print_line=lines.append),
    )
    with compiling_anew():  # the layers of a program from the cache are found by its name, which other tests use too
        jax.block_until_ready(train_step(jnp.ones((64, 64))))
    for step in range(1, count + 1):
        Trainer.begin_profile(trainer, step, profiled)
        with profiled.annotated_step(step):
            jax.block_until_ready(train_step(jnp.ones((64, 64))))
        Trainer.end_profile(trainer, step, profiled)
    return lines


def traced_step_numbers(workdir: Path) -> list[int]:
    (path,) = (workdir / FOLDER).glob('plugins/profile/*/*.xplane.pb')
    planes = message_class('Space').FromString(path.read_bytes()).planes
    events = [
        event for plane in planes for line in trace_lines(plane) for event in line.events if event.name == 'train'
    ]
    return sorted(int(dict(event.stats)['step_num']) for event in events)


def test_a_profile_has_its_steps_and_prints_the_longest_operations(tmp_path):
    with StepProfile(tmp_path, (2, 3)) as profiled:
        first, *operations = run_steps(profiled, 4)
    assert first.startswith(f'steps 2 to 3 are profiled; all charts: xprof --logdir {tmp_path}/profile; the ')
    assert 1 <= len(operations) <= 5 and 'ms a step  attention/dot_general (' in operations[0]
    assert traced_step_numbers(tmp_path) == [2, 3]


def test_a_run_that_ends_early_ends_its_trace(tmp_path):
    with pytest.raises(ValueError), StepProfile(tmp_path / 'a', (1, 9)) as profiled:
        run_steps(profiled, 2)
        raise ValueError
    assert traced_step_numbers(tmp_path / 'a') == [1, 2]


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / FOLDER).touch()
    with StepProfile(tmp_path, (1, 1)) as profiled:
        assert run_steps(profiled, 2) == [f"no step is profiled: [Errno 17] File exists: '{tmp_path / FOLDER}'"]
    monkeypatch.setattr(jax.profiler, 'start_trace', lambda *_, **__: None)
    monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: (_ for _ in ()).throw(OSError(28, 'No space left')))
    with StepProfile(tmp_path / 'new', (1, 1)) as profiled:
        assert run_steps(profiled, 2) == ['the profile of steps 1 to 1 failed: [Errno 28] No space left']


def test_without_a_profile_nothing_happens(tmp_path):
    with StepProfile(tmp_path, None) as profiled:
        assert run_steps(profiled, 2) == [] and not [*tmp_path.iterdir()]


@pytest.mark.parametrize('platform, options', [('gpu', {'xla_gpu_enable_command_buffer': ''}), ('cpu', None)])
def test_a_profiled_step_has_no_command_buffers_on_gpus(tmp_path, platform: str, options: dict | None):
    mesh = SimpleNamespace(devices=SimpleNamespace(flat=[SimpleNamespace(platform=platform)]))
    assert StepProfile(tmp_path, (2, 3)).jit_options(mesh).get('compiler_options') == options
    assert StepProfile(tmp_path, None).jit_options(mesh) == {}
    assert jax.jit(lambda x: x + 1, compiler_options=options)(1) == 2  # XLA knows the option


def test_profiled_steps_are_steps_that_the_run_makes():
    for profile in (None, (1, 10), (10, 10)):
        check_profiled_steps(profile, 10)
    with pytest.raises(InputError, match='^--profile 9:11 is beyond the run, which has 10 steps$'):
        check_profiled_steps((9, 11), 10)


def test_a_resumed_run_does_not_profile_steps_again():
    lines: list[str] = []
    for done in (4, 6, 10):
        assert steps_left_to_profile((5, 6), done, lines.append) == ((5, 6) if done == 4 else None)
    assert steps_left_to_profile(None, 10, lines.append) is None
    line = 'steps 5 to 6 are not profiled, because the run has already made {} steps'
    assert lines == [line.format(6), line.format(10)]


@pytest.mark.lenient_promotion
def test_operations_of_a_training_step_tell_their_layers():
    graph, params = model()
    optimizer = make_optimizer(OptimizerConfig(), 5, stacked=None)
    step = make_train_step(graph, OBJECTIVE, optimizer)
    text = jax.jit(step).lower(initial_state(params, optimizer, 0), BATCH).as_text(debug_info=True)
    for scope in ('embeddings', 'attention', 'feed_forward', 'masked_lm_head', 'pair_head'):
        assert f'jvp({scope})/' in text or f'/{scope}/' in text
    assert '/optimizer/' in text
