"""Runs of several processes: the numbers of one process, a stop that all agree on, and going on with more of them."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import pytest
from absl import flags

from efficient_attention.commands import hosts
from efficient_attention.commands.hosts import join_hosts
from efficient_attention.errors import ExitCode, InputError
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from efficient_attention.training.run import build_run
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.metrics import read_metrics
from tests.quick_compile import FLAGS
from tests.tolerances import assert_close
from tests.training import tiny_fine_tuning
from tests.training.tiny_run import tiny_config, write_corpus

pytestmark = pytest.mark.lenient_promotion  # Optax multiplies Python floats with int32 counts

ROOT = Path(__file__).resolve().parent.parent.parent
RATES = {'steps_per_second', 'tokens_per_second', 'waiting_share'}
STEPS = 16
# A line of metrics for each step, so that none is a mean over the steps before and after a stop.
FIELDS = {'train.steps': STEPS, 'train.log_every_steps': 1}
TUNING = {'train.steps': 4, 'train.log_every_steps': 1, 'examples.buckets': (16,)}  # one shape, so one program

# train.py of two processes which fine-tune before that. The second is sent SIGTERM before its fifth step of
# pretraining, and then takes its steps slowly, as a process learns of a signal to another only within a second.
STOPPED = """
    import json, os, signal, sys, time
    import jax
    import train as entry
    from efficient_attention.training import loop
    from efficient_attention.commands.command_line import run_command
    from efficient_attention.training.fill_config import fill_config

    train, next_batch, taken = loop.train, loop.Trainer.next_batch, []

    def next_batch_or_stop(trainer, batches):
        taken.append(trainer)
        if len(taken) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0 if len(taken) > 5 else 0.0)
        return next_batch(trainer, batches)

    def train_both(config, workdir, **opened):
        train(fill_config(json.loads(os.environ['FINE_TUNING'])).config, workdir.with_name('two_tuned'))
        if jax.process_index() == 1:
            loop.Trainer.next_batch = next_batch_or_stop
        train(config, workdir, **opened)

    loop.train = train_both
    run_command(entry.main)
"""


def launch(folder: Path, workdir: Path, program: list[str], processes: int, devices: int) -> list[subprocess.Popen]:
    """Processes of one pretraining run, on the files in `folder`, with so many devices each."""
    with socket.socket() as probe:
        probe.bind(('localhost', 0))
        address = f'localhost:{probe.getsockname()[1]}'
    data = {'data.source': write_corpus(folder), 'data.cache': str(folder / 'cache')}
    fields = [f'--config.{name}={value}' for name, value in (data | FIELDS).items()]
    command = [sys.executable, *program, '--config=tests/training/tiny_run.py', *fields, f'--workdir={workdir}']
    command += ['--distributed', f'--coordinator={address}', f'--process_count={processes}']
    environment = os.environ | {
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices} {FLAGS}',
        'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
        'FINE_TUNING': json.dumps(tiny_fine_tuning.tiny_values(folder / 'tuning', **TUNING)),
    }
    options = {'cwd': ROOT, 'env': environment, 'stderr': subprocess.PIPE, 'text': True}
    return [subprocess.Popen([*command, f'--process_id={number}'], **options) for number in range(processes)]


def finish(processes: list[subprocess.Popen], code: int = ExitCode.DONE) -> list[str]:
    """What each says until its end, with this exit code."""
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), '\n'.join(said)
    return said


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('hosts')


@pytest.fixture(scope='module')
def unbroken(folder: Path) -> Path:
    """The workdir of a run of this process alone."""
    train(tiny_config(folder, **FIELDS), folder / 'unbroken')
    return folder / 'unbroken'


@pytest.fixture(scope='module')
def stopped(folder: Path, unbroken: Path) -> tuple[Path, list[str]]:  # noqa: ARG001  whose corpus it reads
    """The workdir of two processes that were stopped, and what they said."""
    processes = launch(folder, folder / 'two', ['-c', textwrap.dedent(STOPPED)], 2, devices=2)
    return folder / 'two', finish(processes, ExitCode.STOPPED)


def measured(workdir: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """The lines of metrics without what a clock says."""
    lines = read_metrics(workdir)
    return {(line['step'], line['split']): {k: v for k, v in line.items() if k not in RATES} for line in lines}


def assert_same_numbers(workdir: Path, expected: Path, *, last: int = STEPS) -> None:
    """The same lines up to step `last`, and no others."""
    lines, others = measured(workdir), {at: line for at, line in measured(expected).items() if at[0] <= last}
    assert list(lines) == list(others)
    for at, line in lines.items():
        for name in (line.keys() | others[at].keys()) - {'split'}:
            assert line[name] == pytest.approx(others[at][name], rel=1e-5), (at, name)


def assert_same_end(folder: Path, workdir: Path, expected: Path) -> None:
    """The same numbers all along, and the same state after the last step."""
    assert_same_numbers(workdir, expected)
    shapes = build_run(tiny_config(folder, **FIELDS)).abstract_state
    states = [CheckpointReader(place).restore(shapes, STEPS).state for place in (workdir, expected)]
    assert_close(*(jax.device_get((state.params, state.opt_state)) for state in states))


def test_sigterm_to_one_process_stops_both_after_the_same_step(stopped: tuple[Path, list[str]]):
    workdir, said = stopped
    (step,) = re.findall(r'stopped after step (\d+), which is saved', said[0])
    assert 5 <= int(step) < STEPS
    assert CheckpointReader(workdir).steps() == [int(step)]


def test_two_processes_train_like_one(stopped: tuple[Path, list[str]], unbroken: Path):
    workdir, _ = stopped
    assert_same_numbers(workdir, unbroken, last=max(step for step, _ in measured(workdir)))


def test_two_processes_fine_tune_like_one(folder: Path, stopped: tuple[Path, list[str]]):
    """Held-out numbers come from the outputs of all rows, whichever process has them."""
    train(fill_config(tiny_fine_tuning.tiny_values(folder / 'tuning', **TUNING)).config, folder / 'tuned')
    assert (4, 'held_out') in measured(folder / 'tuned')
    assert_same_numbers(stopped[0].with_name('two_tuned'), folder / 'tuned', last=4)


@pytest.mark.parametrize('processes', [1, 2, 4])
def test_other_processes_go_on_to_the_unbroken_end(
    processes: int, folder: Path, stopped: tuple[Path, list[str]], unbroken: Path
):
    workdir = folder / f'resumed_by_{processes}'
    shutil.copytree(stopped[0], workdir)
    (step,) = CheckpointReader(workdir).steps()
    if processes == 1:
        train(tiny_config(folder, **FIELDS), workdir)
    else:
        said = finish(launch(folder, workdir, ['train.py'], processes, devices=1))
        assert f'resumed at step {step}' in said[0]
    assert_same_end(folder, workdir, unbroken)


def test_what_jax_cannot_find_out_is_named():
    with pytest.raises(InputError, match='--distributed: .*--coordinator, --process_count, --process_id'):
        join_hosts(None, None, None)


def test_a_flag_for_hosts_without_distributed_is_refused(monkeypatch: pytest.MonkeyPatch):
    values = flags.FlagValues()
    monkeypatch.setattr(hosts.flags, 'FLAGS', values)
    for name, kind in (('coordinator', flags.DEFINE_string), ('process_count', flags.DEFINE_integer)):
        kind(name, None, '', flag_values=values)
    flags.DEFINE_integer('process_id', None, '', flag_values=values)
    flags.DEFINE_bool('distributed', False, '', flag_values=values)
    values(['program', '--process_count=2'])
    with pytest.raises(InputError, match='--process_count needs --distributed'):
        hosts.join_hosts_of_flags()
