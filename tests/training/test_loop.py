"""Tests whole runs on a tiny corpus: their files, and that stopping, killing and resuming change no result."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from efficient_attention.errors import ExitCode, InputError, RunError, RunStopped
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.processes import graceful_stop
from efficient_attention.processes.graceful_stop import GracefulStop
from efficient_attention.processes.signal_thread import StopSignalThread, StopStage
from efficient_attention.processes.watchdog import COMPILING, DEVICE, EVALUATING, INPUT, SAVING, Watchdog
from efficient_attention.tasks.pretraining import PretrainingTask
from efficient_attention.training import guarded_run, loop
from efficient_attention.training.guarded_run import write_report_at_the_end
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.loop import Trainer, train
from efficient_attention.training.run import build_run
from efficient_attention.training.state import NonFiniteTrainingError, TrainState
from efficient_attention.training.step import jit_train_step
from efficient_attention.training.throughput import Throughput
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.checkpoint_writer import SaveError
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.metrics import SPEEDS, MetricsLog, read_metrics
from efficient_attention.workdir.run_status import COMPLETE, read_status
from efficient_attention.workdir.trackers import all_trackers
from efficient_attention.workdir.trackers.separate_process import SeparateProcess
from tests.one_device import see_one_device
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture
from tests.training.tiny_run import tiny_config

pytestmark = [
    pytest.mark.lenient_promotion,  # Optax mixes Python floats with int32 counts, which strict promotion refuses
    pytest.mark.usefixtures('shared_programs'),
    pytest.mark.devices(4),
]

ROOT = Path(__file__).resolve().parents[2]
MESH = {'mesh.fsdp': 2, 'mesh.tensor': 2}
LINES = [(4, 'train'), (8, 'train'), (8, 'held_out'), (12, 'train'), (16, 'train'), (16, 'held_out')]
LINES += [(20, 'train'), (20, 'held_out')]


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp('runs')


@pytest.fixture(scope='module')
def unbroken(folder) -> Path:
    """Returns the workdir of an uninterrupted run of 20 steps with dropout and sentence pairs, on a mesh of 2 x 2
    devices.
    """
    train(tiny_config(folder, **MESH), folder / 'unbroken')
    return folder / 'unbroken'


def state_at(folder: Path, workdir: Path, step: int) -> TrainState:
    run = build_run(tiny_config(folder, **MESH))
    return CheckpointReader(workdir).restore(run.abstract_state, step).state


def lines_of(workdir: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """Returns the lines of metrics by step and split, without speeds, which depend on a clock."""
    lines = read_metrics(workdir)
    found = {(line['step'], line['split']): {k: v for k, v in line.items() if k not in SPEEDS} for line in lines}
    assert len(found) == len(lines)
    return found


def assert_same_state(folder: Path, left: Path, right: Path) -> None:
    jax.tree.map(np.testing.assert_array_equal, state_at(folder, left, 20), state_at(folder, right, 20))


def test_a_run_leaves_everything_behind_that_its_user_needs(unbroken):
    files = {'config.json', 'tokenizer.json', 'metrics.jsonl', 'report.html', 'environment.json', 'status.json'}
    assert {path.name for path in unbroken.iterdir()} >= files | {'tensorboard', 'checkpoints'}
    assert CheckpointReader(unbroken).complete_steps() == [10, 20]
    assert list(lines_of(unbroken)) == LINES
    assert 'masked_lm_loss' in (unbroken / 'report.html').read_text(encoding='utf-8')


def test_each_program_is_announced_and_its_compilation_is_left_out_of_all_speeds(tmp_path, monkeypatch):
    now, said, left_out, noted = [0.0], [], [], []
    monkeypatch.setattr(loop, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    trainer = SimpleNamespace(
        config=tiny_config(tmp_path),
        compiled_shapes=set(),
        queue=SimpleNamespace(finish_all_steps=lambda: None),
        watchdog=SimpleNamespace(note_progress=lambda *progress: noted.append(progress)),
        throughput=Throughput(tokens_per_step=10, clock=lambda: now[0]),
        progress=SimpleNamespace(print_line=said.append, exclude_seconds=left_out.append),
    )
    for step, (length, seconds) in enumerate(((8, 5.0), (8, 1.0), (16, 3.0), (8, 1.0)), 1):
        with Trainer.note_compilation(trainer, step, {'token_ids': np.zeros((2, length))}):
            now[0] += seconds
    other = 'compiling the training step for batches of another shape, program 2'
    assert said == ['compiling the training step', 'compiled in 5 s', other, 'compiled in 3 s'] and left_out == [
        5.0,
        3.0,
    ]
    assert trainer.throughput.measure_rates(4)['tokens_per_second'] == 20.0
    assert noted == [(1, COMPILING), (3, COMPILING)]


def test_the_model_learns(unbroken):
    lines = lines_of(unbroken)
    assert lines[20, 'held_out']['masked_lm_loss'] < lines[8, 'held_out']['masked_lm_loss'] - 0.05
    assert lines[20, 'train']['skipped'] == 0


def test_a_run_that_was_stopped_and_goes_on_equals_one_that_was_not(folder, unbroken, monkeypatch, capfd):
    original, calls = Trainer.next_batch, []

    def next_batch(trainer: Trainer, batches: Any) -> dict:
        calls.append(trainer)
        if len(calls) == 7:
            signal.raise_signal(signal.SIGTERM)
        return original(trainer, batches)

    workdir = folder / 'stopped'
    watch, stages = StopSignalThread(), []
    config = tiny_config(folder, **MESH, **{'train.trackers': 'csv,mlflow'})
    fake = (sys.executable, str(ROOT / 'tests' / 'workdir' / 'trackers' / 'fake_tracker.py'), 'well')
    monkeypatch.setattr(all_trackers, 'SeparateProcess', functools.partial(SeparateProcess, command=fake))
    with monkeypatch.context() as stopping:
        stopping.setattr(Trainer, 'next_batch', next_batch)
        stopping.setattr(graceful_stop, 'current_signal_thread', lambda: watch)
        stopping.setattr(guarded_run, 'write_report', lambda *_: stages.append(watch.stage))
        with pytest.raises(RunStopped):
            train(config, workdir, profile=(3, 5))
    # the report is written in the stage SAVING, which has no short time limit
    assert [*stages, watch.stage] == [StopStage.SAVING, StopStage.SAVED]
    assert CheckpointReader(workdir).complete_steps() == [7]
    said = capfd.readouterr().err
    assert 'stopped after step 7, which is saved' in said
    assert said.splitlines().count('compiling the training step') == 1 and 'program 2' not in said
    assert 'steps 3 to 5 are profiled; ' in said and 'tracker mlflow: at home' in said
    held_out = train(config, workdir, profile=(3, 5))
    said = capfd.readouterr().err
    assert 'resumed at step 7' in said
    assert 'steps 3 to 5 are not profiled, because the run has already made 7 steps' in said
    assert_same_state(folder, workdir, unbroken)  # neither the profile nor the trackers change a number
    expected = lines_of(unbroken)
    assert lines_of(workdir) == expected
    assert [list(line) for line in lines_of(workdir).values()] == [list(line) for line in expected.values()]
    assert held_out == {k: v for k, v in expected[20, 'held_out'].items() if k not in ('step', 'split')}
    rows = (workdir / 'csv' / 'train.csv').read_text().splitlines()
    assert [row.partition(',')[0] for row in rows] == ['step', '4', '8', '12', '16', '20']
    calls = (workdir / 'calls.txt').read_text().splitlines()
    steps = ['4', 'stopped', '8', '8', '12', '16', '16', '20', '20', 'finished']
    assert [call.split()[0] for call in calls if not call.startswith('start')] == steps
    assert len({call for call in calls if call.startswith('start')}) == 1  # both starts continue one entry


class Compiling(Exception):
    """Raised in place of the end of the process while an evaluation compiles."""


@contextlib.contextmanager
def save_in_a_thread(stop: GracefulStop, save: Callable[[], int]) -> Iterator[None]:
    """Calls `save` in a thread, as the signal thread does if an evaluation does not react to a stop."""
    del stop
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(save()))
    thread.start()
    thread.join()
    assert codes == [ExitCode.STOPPED]
    raise Compiling
    yield


def test_an_evaluation_that_a_stop_ends_is_made_up_for(folder, unbroken, monkeypatch, capfd):
    """A stop ends an evaluation of the run's curve; the state of its step is saved, so the next start evaluates it."""
    original = PretrainingTask.evaluation_batches

    def evaluation_batches(task: PretrainingTask, *process: int) -> Iterator[dict]:
        for number, batch in enumerate(original(task, *process)):
            if number == 1:
                signal.raise_signal(signal.SIGTERM)
            yield batch

    workdir = folder / 'cut'
    with monkeypatch.context() as stopping:
        stopping.setattr(PretrainingTask, 'evaluation_batches', evaluation_batches)
        with pytest.raises(RunStopped):
            train(tiny_config(folder, **MESH), workdir)
    assert 'stopped after step 8, which is saved' in capfd.readouterr().err
    assert CheckpointReader(workdir).complete_steps() == [8]
    assert list(lines_of(workdir)) == [at for at in LINES if at[0] <= 8 and at != (8, 'held_out')]
    with monkeypatch.context() as compiling:
        compiling.setattr(GracefulStop, 'save_if_unresponsive', save_in_a_thread)
        with pytest.raises(Compiling):
            train(tiny_config(folder, **MESH), workdir)
    assert CheckpointReader(workdir).complete_steps() == [8, 10, 16]
    train(tiny_config(folder, **MESH), workdir)
    assert_same_state(folder, workdir, unbroken)
    assert lines_of(workdir) == lines_of(unbroken)


def test_a_run_that_gets_more_steps_equals_the_longer_one_and_needs_no_held_out_text(folder, monkeypatch, capfd):
    see_one_device(monkeypatch)
    fields = {'optimizer.schedule': 'constant', 'data.held_out': 0.0, 'data.pairs': 'none', 'model.layers': 1}
    short, long = (tiny_config(folder, **fields, **{'train.steps': steps}) for steps in (3, 5))
    assert train(long, folder / 'long') == train(short, folder / 'grown') == {}
    begun = capfd.readouterr().err
    assert 'freshly initialised parameters (seed 0)' in begun and 'no text is held out' in begun
    assert train(long, folder / 'grown') == {}
    assert 'train.steps grows from 3 to 5' in capfd.readouterr().err
    run = build_run(long)
    states = [CheckpointReader(folder / name).restore(run.abstract_state, 5).state for name in ('long', 'grown')]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert {split for _, split in lines_of(folder / 'grown')} == {'train'}
    assert 'No text was held out' in (folder / 'grown' / 'report.html').read_text(encoding='utf-8')
    assert read_config(folder / 'grown') == long
    with pytest.raises(InputError, match='no text is held out .* so nothing can be evaluated'):
        evaluate_workdir(folder / 'grown')


def test_a_new_run_says_which_checkpoint_it_starts_from(folder, unbroken):
    fields = {'train.start_from': str(unbroken)}
    assert InitialParams(tiny_config(folder, **fields)).origin() == f'parameters from {unbroken} step 20'
    fields['train.start_random'] = True
    assert (
        InitialParams(tiny_config(folder, **fields))
        .origin()
        .startswith('freshly initialised parameters (seed 0), sizes')
    )


# Kills itself after the log of step 16, as soon as the checkpoint of step 10 is complete.
KILLED = """
    import os, pathlib, signal, sys
    from efficient_attention.training import loop
    from tests.training.tiny_run import tiny_config

    log_mean_metrics = loop.Trainer.log_mean_metrics

    def log_and_die(trainer, step):
        log_mean_metrics(trainer, step)
        if step == 16:
            trainer.checkpoints.wait_until_saved()
            os.kill(os.getpid(), signal.SIGKILL)

    loop.Trainer.log_mean_metrics = log_and_die
    folder, workdir = map(pathlib.Path, sys.argv[1:])
    loop.train(tiny_config(folder, **{'mesh.fsdp': 2, 'mesh.tensor': 2}), workdir)
"""


@pytest.mark.slow  # tests/scripts/stress/test_soak.py kills a run twice
def test_a_run_that_was_killed_and_goes_on_equals_one_that_was_not(folder, unbroken):
    workdir = folder / 'killed'
    command = [sys.executable, '-c', textwrap.dedent(KILLED), str(folder), str(workdir)]
    environment = os.environ | {'XLA_FLAGS': os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=4')}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert CheckpointReader(workdir).complete_steps() == [10]
    assert (16, 'train') in lines_of(workdir)
    train(tiny_config(folder, **MESH), workdir)
    assert_same_state(folder, workdir, unbroken)
    assert lines_of(workdir) == lines_of(unbroken)


def test_a_run_goes_on_with_equal_losses_on_another_mesh(folder, unbroken):
    run = build_run(tiny_config(folder), devices=jax.devices()[:1])
    _, state, record = CheckpointReader(unbroken).restore(run.abstract_state, 10)
    train_step = jit_train_step(run)
    losses: list[float] = []
    for batch in run.task.training_batches(10, 20, 0, 1):
        state, metrics = train_step(state, run.put_batch_on_devices(batch))
        losses.append(float(metrics['loss']))
    expected = lines_of(unbroken)
    before = record['interval']
    assert before['steps'] == 2  # steps 9 and 10, which no line of the log covers yet
    sums = {12: dict(before['sums'])['loss'] + sum(losses[:2]), 16: sum(losses[2:6]), 20: sum(losses[6:])}
    for step, total in sums.items():
        np.testing.assert_allclose(total / 4, expected[step, 'train']['loss'], rtol=1e-5)


def test_a_complete_run_is_evaluated_again_and_written_no_further(folder, unbroken, monkeypatch, capfd):
    before = (unbroken / 'metrics.jsonl').read_text(encoding='utf-8')
    monkeypatch.setattr(PretrainingTask, 'rows_per_epoch', None)  # a call would plan training data that nobody needs
    held_out = train(tiny_config(folder, **MESH), unbroken, profile=(2, 3))
    assert read_status(unbroken).state == COMPLETE
    assert (unbroken / 'metrics.jsonl').read_text(encoding='utf-8') == before
    assert held_out['masked_lm_loss'] == lines_of(unbroken)[20, 'held_out']['masked_lm_loss']
    said = capfd.readouterr().err
    assert 'the rest is lost' not in said and 'steps 2 to 3 are not profiled' in said
    assert 'the run is complete after step 20; only its evaluation is run\n' in said
    done = f'done: step 20, masked_lm_loss {held_out["masked_lm_loss"]:.4g}, report {unbroken}/report.html'
    assert said.splitlines()[-1] == f'{done}; evaluate the run with: efficient-attention eval --workdir {unbroken}'
    few = before.splitlines(keepends=True)[:2]
    tokenizer = (unbroken / 'tokenizer.json').read_bytes()
    (unbroken / 'tokenizer.json').write_bytes(tokenizer + b' ')
    (unbroken / 'metrics.jsonl').write_text(''.join([*few, '{"step": 5, "spl\n']), encoding='utf-8')
    train(tiny_config(folder, **MESH), unbroken)
    said = capfd.readouterr().err
    assert f'{unbroken}/metrics.jsonl has 2 lines of the steps so far, and had 8: the rest' in said
    assert f'{unbroken}/metrics.jsonl: unusable lines are ignored: line 3: not JSON' in said
    assert f'{unbroken}: tokenizer.json is not what was written; it is written anew' in said
    assert (unbroken / 'tokenizer.json').read_bytes() == tokenizer
    (unbroken / 'metrics.jsonl').write_text(before, encoding='utf-8')


@pytest.mark.parametrize('batch_size', [8, 64])
def test_evaluation_of_the_workdir_gives_the_last_held_out_numbers(unbroken, batch_size):
    found = evaluate_workdir(unbroken, batch_size=batch_size)
    assert found.pop('step') == 20
    expected = {k: v for k, v in lines_of(unbroken)[20, 'held_out'].items() if k not in ('step', 'split')}
    assert found == pytest.approx(expected, rel=1e-5)


def poison(monkeypatch, steps: range) -> None:
    """Makes the masked weights of these steps' batches infinite."""
    original = PretrainingTask.training_batches

    def training_batches(task: PretrainingTask, start_step: int, *arguments: int) -> Any:
        for step, batch in enumerate(original(task, start_step, *arguments), start_step + 1):
            scale = np.float32(np.inf if step in steps else 1)
            yield batch | {'masked_weights': np.where(batch['masked_weights'] > 0, scale, np.float32(0))}

    monkeypatch.setattr(PretrainingTask, 'training_batches', training_batches)


def test_steps_that_are_not_finite_are_skipped_and_counted(folder, monkeypatch, capfd):
    poison(monkeypatch, range(5, 7))
    held_out = train(tiny_config(folder, **MESH), folder / 'skipped')
    err = capfd.readouterr().err
    assert all(f'step {step} skipped: batch/masked_weights is not finite\n' in err for step in (5, 6))
    lines = lines_of(folder / 'skipped')
    assert [lines[step, 'train']['skipped'] for step in (4, 8, 12, 20)] == [0, 2, 2, 2]
    assert np.isfinite(lines[8, 'train']['loss']) and np.isfinite(lines[12, 'train']['loss'])
    assert np.isfinite(held_out['masked_lm_loss'])


class Stalled(Exception):
    """Raised with the watchdog's finding, in place of the end of the process."""


class WatchdogOfTests(Watchdog):
    """Keeps the notes of progress; its clock moves by a second for each note, and while the input hangs."""

    def __init__(self, _seconds: float, workdir: Path) -> None:
        self.notes: list[tuple[int, str]] = []
        self.now = 0.0
        super().__init__(100.0, workdir, end=self.raise_stalled, clock=lambda: self.now)

    def raise_stalled(self, finding: str) -> None:
        raise Stalled(finding)

    def note_progress(self, step: int, doing: str) -> None:
        self.notes.append((step, doing))
        super().note_progress(step, doing)
        self.now += 1
        self.check_progress()

    def __enter__(self) -> 'WatchdogOfTests':
        WatchdogOfTests.newest = self
        return self  # no thread is started


def test_a_source_that_hangs_is_found_and_named(folder, monkeypatch):
    original = PretrainingTask.training_batches

    def training_batches(*arguments: Any) -> Any:
        for step, batch in enumerate(original(*arguments), 1):
            while step == 14:
                WatchdogOfTests.newest.now += 1
                WatchdogOfTests.newest.check_progress()
            yield batch

    monkeypatch.setattr(PretrainingTask, 'training_batches', training_batches)
    monkeypatch.setattr(guarded_run, 'Watchdog', WatchdogOfTests)
    with pytest.raises(Stalled, match='^process 0 of 1 stalled at step 14, waiting for input for 10'):
        train(tiny_config(folder, **MESH), folder / 'stalled')
    notes = WatchdogOfTests.newest.notes
    assert notes[:5] == [(1, COMPILING)] * 3 + [(2, INPUT), (2, DEVICE)] and notes[-1] == (14, INPUT)
    assert notes.count((8, EVALUATING)) > 2 and notes[notes.index((10, DEVICE)) + 1] == (10, SAVING)
    assert CheckpointReader(folder / 'stalled').complete_steps() == [10]


def test_too_many_of_them_in_a_row_stop_the_run_with_its_last_checkpoint(folder, monkeypatch):
    poison(monkeypatch, range(13, 100))
    with pytest.raises(NonFiniteTrainingError, match='stopped at step 15: 3 steps in a row'):
        train(tiny_config(folder, **MESH, **{'train.max_skipped_in_row': 3}), folder / 'given up')
    assert CheckpointReader(folder / 'given up').complete_steps() == [10]


def test_a_failed_save_ends_a_run_that_shall_stop_then(folder, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(MetricsLog, 'check_lines_written', fail)  # as if lines of metrics could not be written
    fields = {'checkpoint.every_steps': 4, 'checkpoint.when_save_fails': 'stop', 'train.log_every_steps': 1}
    with pytest.raises(SaveError, match='checkpoint step 4 not saved in .*: No space left on device'):
        train(tiny_config(folder, **MESH, **fields), folder / 'full disk')
    assert 4 <= read_metrics(folder / 'full disk')[-1]['step'] <= 8  # the next save reports it at the latest
    assert (folder / 'full disk' / 'report.html').is_file()


def test_a_report_that_cannot_be_written_hides_no_other_error(unbroken, monkeypatch, capsys):
    def fail(workdir: Path) -> None:
        raise RunError(f'{workdir}/report.html: cannot be written')

    monkeypatch.setattr(guarded_run, 'write_report', fail)
    with pytest.raises(RunError, match='report.html: cannot be written'):
        write_report_at_the_end(unbroken, None, None, None)
    write_report_at_the_end(unbroken, ValueError, ValueError('first'), None)
    assert 'error: ' in capsys.readouterr().err


# ---- workdirs that belong to another run ----


def test_another_config_is_refused_and_named_before_data_are_prepared(folder, unbroken, monkeypatch):
    monkeypatch.setattr(guarded_run, 'build_run', lambda *_, **__: pytest.fail('data are prepared'))
    with pytest.raises(InputError, match=r'config\.train\.seed = 0, now it is 1; name a new --workdir'):
        train(tiny_config(folder, **MESH, **{'train.seed': 1}), unbroken)


def test_another_corpus_is_refused(folder, unbroken):
    config = tiny_config(folder, **MESH)
    text = folder / 'corpus.txt'
    text.write_text(text.read_text(encoding='utf-8') + '\n\nA new document.\n', encoding='utf-8')
    with pytest.raises(InputError, match=r'was made with corpus = "[0-9a-f]{64}", now it is'):
        train(config, unbroken)
    with pytest.raises(InputError, match=r'was made with corpus = "[0-9a-f]{64}", now it is'):
        evaluate_workdir(unbroken)


def test_checkpoints_of_another_run_are_refused(folder, unbroken, tmp_path):
    shutil.copytree(unbroken / 'checkpoints', tmp_path / 'checkpoints')
    with pytest.raises(InputError, match=r'was made with config\.model\.layers = 2, now it is 3'):
        train(tiny_config(folder, **MESH, **{'model.layers': 3}), tmp_path)


def test_a_metric_that_no_evaluation_gives_is_refused_before_the_first_step(tmp_path):
    config = tiny_config(tmp_path, **{'checkpoint.best_metric': 'loss'})
    with pytest.raises(InputError, match="checkpoint.best_metric is 'loss'; known: masked_lm_accuracy"):
        train(config, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()
