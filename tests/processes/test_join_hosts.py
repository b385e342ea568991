"""Tests runs of several processes: results equal to one process, an agreed stop, and resuming with more processes."""

import json
import re
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from efficient_attention.errors import ExitCode, InputError, RunStopped
from efficient_attention.inference.predict_files import predict_files
from efficient_attention.processes import join_hosts
from efficient_attention.processes.signal_thread import SIGNALS, StopSignalThread, StopStage
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from efficient_attention.training.run import build_run
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.metrics import SPEEDS, read_metrics
from tests.processes.host_programs import SIGNALLED, STOPPED
from tests.tolerances import assert_close
from tests.topologies import Ended, Topology, finish, start
from tests.training import tiny_fine_tuning
from tests.training.tiny_run import tiny_config, write_corpus

# Optax mixes Python floats with int32 counts, which strict promotion refuses
pytestmark = [pytest.mark.lenient_promotion, pytest.mark.devices(1)]

STEPS = 16
# Each step has a line of metrics, because a mean over several steps would differ when a stop comes between them.
FIELDS = {'train.steps': STEPS, 'train.log_every_steps': 1}
# rows of one length need only one program
TUNING = {'train.steps': 6, 'train.log_every_steps': 1, 'examples.buckets': (16,)}
TUNING |= {'train.batch_size': 40}  # an epoch has 4 steps
# The run ends at the first evaluation whose loss is not smaller than the previous one: at the second evaluation.
TUNING |= {'eval.every_steps': 2, 'train.early_stop': 1}
TUNING |= {'checkpoint.best_metric': 'fine_tuning_loss', 'checkpoint.best_mode': 'min'}


def launch(
    folder: Path,
    workdir: Path,
    topology: Topology,
    program: str = '',
    changed: dict[str, Any] | None = None,
    **environment: str,
) -> list[subprocess.Popen]:
    """Starts the processes of one pretraining run on the files in `folder`, with the fields in `changed`."""
    data = {'data.source': write_corpus(folder), 'data.cache': str(folder / 'cache')}
    fields = [f'--config.{name}={value}' for name, value in (data | FIELDS | (changed or {})).items()]
    arguments = ['--config=tests/training/tiny_run.py', *fields, f'--workdir={workdir}']
    environment['FINE_TUNING'] = json.dumps(tiny_fine_tuning.tiny_values(folder / 'tuning', **TUNING))
    words = ('-c', textwrap.dedent(program)) if program else ('train.py',)
    return start(topology, arguments, program=words, **environment)


def signalled(folder: Path, workdir: Path, topology: Topology, number: int, *victims: int) -> list[subprocess.Popen]:
    """Starts the processes of a run in which the victims get a signal after six steps."""
    who = ','.join(map(str, victims))
    return launch(folder, workdir, topology, SIGNALLED, TURN='7', VICTIMS=who, SIGNAL=str(int(number)))


def finish_well(processes: list[subprocess.Popen], code: int = ExitCode.DONE) -> list[Ended]:
    """Waits for the processes, checks that all end with this exit code, and returns their output."""
    ended = finish(processes, seconds=300)
    assert [one.code for one in ended] == [code] * len(ended), '\n'.join(one.errors for one in ended)
    return ended


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('hosts')


@pytest.fixture(scope='module')
def unbroken(folder: Path) -> Path:
    """Returns the workdir of an uninterrupted run of this single process."""
    train(tiny_config(folder, **FIELDS), folder / 'unbroken')
    return folder / 'unbroken'


@pytest.fixture(scope='module')
def stopped(folder: Path, unbroken: Path) -> tuple[Path, list[Ended]]:  # noqa: ARG001  whose corpus it reads
    """Returns the workdir of a run whose two processes were stopped, and their exit codes and output."""
    processes = launch(folder, folder / 'two', Topology(2, 2), STOPPED)
    return folder / 'two', finish_well(processes, ExitCode.STOPPED)


def measured(workdir: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """Returns the lines of metrics by step and split, without speeds, which depend on a clock."""
    lines = read_metrics(workdir)
    return {(line['step'], line['split']): {k: v for k, v in line.items() if k not in SPEEDS} for line in lines}


def assert_same_numbers(workdir: Path, expected: Path, *, last: int = STEPS) -> None:
    """Checks that two runs have the same metrics up to step `last`."""
    lines, others = measured(workdir), {at: line for at, line in measured(expected).items() if at[0] <= last}
    assert list(lines) == list(others)
    for at, line in lines.items():
        for name in (line.keys() | others[at].keys()) - {'split'}:
            assert line[name] == pytest.approx(others[at][name], rel=1e-5), (at, name)


def assert_same_end(folder: Path, workdir: Path, expected: Path) -> None:
    """Checks that two runs have the same metrics and the same state after the last step."""
    assert_same_numbers(workdir, expected)
    shapes = build_run(tiny_config(folder, **FIELDS)).abstract_state
    states = [CheckpointReader(place).restore(shapes, STEPS).state for place in (workdir, expected)]
    assert_close(*(jax.device_get((state.params, state.opt_state)) for state in states))


def test_sigterm_to_one_process_stops_both_after_the_same_step(stopped: tuple[Path, list[Ended]]):
    workdir, ended = stopped
    (step,) = re.findall(r'stopped after step (\d+), which is saved', ended[0].errors)
    assert 5 <= int(step) < STEPS
    assert CheckpointReader(workdir).complete_steps() == [int(step)]


def test_two_processes_train_like_one(stopped: tuple[Path, list[Ended]], unbroken: Path):
    workdir, _ = stopped
    assert_same_numbers(workdir, unbroken, last=max(step for step, _ in measured(workdir)))


def test_two_processes_fine_tune_like_one(folder: Path, stopped: tuple[Path, list[Ended]]):
    """Metrics of the dev split use the outputs of all examples, whichever process computed them."""
    train(fill_config(tiny_fine_tuning.tiny_values(folder / 'tuning', **TUNING)).config, folder / 'tuned')
    assert max(measured(folder / 'tuned')) == (4, 'train')  # stopped early
    assert_same_numbers(stopped[0].with_name('two_tuned'), folder / 'tuned', last=4)
    rows = [predict(stopped[0].with_name('two_tuned'), folder / 'two'), predict(folder / 'tuned', folder / 'one')]
    assert len(rows[0]) == 13 and [row['label'] for row in rows[0]] == [row['label'] for row in rows[1]]
    for row, other in zip(*rows, strict=True):
        assert row['id'] == other['id'] and row['probabilities'] == pytest.approx(other['probabilities'], rel=1e-5)


def test_an_evaluation_gives_each_process_the_numbers_of_the_run(stopped: tuple[Path, list[Ended]]):
    workdir, ended = stopped
    lines = measured(workdir.with_name('two_tuned'))
    for number, one in enumerate(ended):
        found = json.loads(one.output.split(f'metrics of process {number}: ')[1].splitlines()[0])
        for name, value in lines[found['step'], 'held_out'].items():
            assert name == 'split' or found[name] == pytest.approx(value, rel=1e-5), name


def rows_of_two(workdir: Path) -> list[list[list[list[int]]]]:
    """Returns the tokens of the rows that each of two processes has read, by step."""
    paths = [Path(f'{workdir}-rows-{number}') for number in range(2)]
    return [[json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()] for path in paths]


def test_two_processes_read_each_record_once(folder: Path, stopped: tuple[Path, list[Ended]]):
    read = rows_of_two(stopped[0].with_name('two_tuned'))
    words = (folder / 'tuning' / 'vocab.txt').read_text(encoding='utf-8').split()
    texts = [[' '.join(words[token] for token in row if token > 4) for row in sum(steps, [])] for steps in read]
    _, *lines = (folder / 'tuning' / 'train.tsv').read_text(encoding='utf-8').splitlines()
    assert [len(one) for one in texts] == [80, 80]
    assert sorted(texts[0] + texts[1]) == sorted(line.split('\t')[0] for line in lines)


def test_two_processes_read_the_rows_of_one_in_its_order(folder: Path, stopped: tuple[Path, list[Ended]]):
    first, second = rows_of_two(stopped[0])
    batches = build_run(tiny_config(folder, **FIELDS)).task.training_batches(0, len(first), 0, 1)
    assert len(first) >= 5 and [batch['tokens'].tolist() for batch in batches] == list(map(list.__add__, first, second))


def predict(workdir: Path, folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of the prediction file that a run's checkpoint gives for its dev split."""
    (path,) = predict_files(workdir, folder / 'predictions', split='dev')['files']
    return [json.loads(line) for line in Path(path).read_text(encoding='utf-8').splitlines()]


def assert_names_the_dead(ended: Ended, victim: int) -> None:
    """Checks for exit code 4 and one error line that names the dead process, without messages of a broken
    collective.
    """
    assert ended.code == 4, ended.errors
    (line,) = re.findall(r'^error: (.*)$', ended.errors, re.MULTILINE)
    assert line.startswith(f'process {victim} (host ') and 'all go on from the newest checkpoint' in line
    assert 'Traceback' not in ended.errors and 'stack trace' not in ended.errors


def test_four_go_on_a_killed_one_is_named_and_one_goes_on_to_the_unbroken_end(
    folder: Path, stopped: tuple[Path, list[Ended]], unbroken: Path
):
    """Kills the first of four processes, which runs JAX's coordination service, soon after they have saved a step."""
    workdir = folder / 'killed'
    shutil.copytree(stopped[0], workdir)
    (step,) = CheckpointReader(workdir).complete_steps()
    killing = {'TURN': '4', 'VICTIMS': '0', 'SIGNAL': '9'}
    processes = launch(folder, workdir, Topology(4, 1), SIGNALLED, {'checkpoint.every_steps': 2}, **killing)
    killed, *others = finish(processes, seconds=300)
    assert killed.code == -signal.SIGKILL and f'resumed at step {step}' in killed.errors
    for other in others:
        assert_names_the_dead(other, 0)
        assert 'resumed' not in other.errors
    last = max(number for number, _ in measured(workdir))
    assert last == step + 3
    assert_same_numbers(workdir, unbroken, last=last)
    assert_each_process_has_sealed(workdir, 4)
    assert CheckpointReader(workdir).latest_step() in (last - 1, last)
    train(tiny_config(folder, **FIELDS), workdir)
    assert_same_end(folder, workdir, unbroken)


def assert_each_process_has_sealed(workdir: Path, processes: int) -> None:
    """Checks that the last checkpoint has undamaged checksums of each process, and that a change in any listed file is
    found.
    """
    reader = CheckpointReader(workdir)
    step = reader.latest_step()
    folder = reader.folder / str(step)
    assert len(list(folder.glob('seal-*'))) == processes and not reader.find_damage(step)
    assert len({path.name for path in folder.glob('state/ocdbt.process_*')}) == processes
    for path in [path for path in folder.rglob('*') if path.is_file()]:
        content = path.read_bytes()
        path.write_bytes(content + b'x')
        assert path.name in reader.find_damage(step)
        path.write_bytes(content)
    assert not reader.find_damage(step)


@pytest.mark.slow
@pytest.mark.parametrize(
    'number, processes, victim',
    [(signal.SIGKILL, 2, 1), (signal.SIGKILL, 4, 2), (signal.SIGSTOP, 2, 0), (signal.SIGSTOP, 4, 2)],
    ids=['killed_1_of_2', 'killed_2_of_4', 'stopped_0_of_2', 'stopped_2_of_4'],
)
def test_whoever_dies_or_hangs_is_named_within_half_a_minute(
    number: signal.Signals, processes: int, victim: int, folder: Path, unbroken: Path
):
    workdir = folder / f'{number.name}_{victim}_of_{processes}'
    started = signalled(folder, workdir, Topology(processes, 1), number, victim)
    try:
        while not has_fallen(started[victim]):
            time.sleep(0.05)
        begun = time.monotonic()
        others = finish([process for process in started if process is not started[victim]], seconds=60)
        print(f'{number.name} to {victim} of {processes}: the others ended within {time.monotonic() - begun:.1f} s')
        assert time.monotonic() - begun < 30
    finally:
        started[victim].kill()  # SIGKILL also ends a process that SIGSTOP has stopped
        finish(started)
    for ended in others:
        assert_names_the_dead(ended, victim)
    finish_well(launch(folder, workdir, Topology(processes, 1)))
    assert_same_end(folder, workdir, unbroken)


def has_fallen(process: subprocess.Popen) -> bool:
    """Returns whether a process is dead, or stopped by SIGSTOP."""
    stat = Path(f'/proc/{process.pid}/stat').read_text().rpartition(')')[2].split()
    return stat[0] in 'TZX'


@pytest.mark.slow
@pytest.mark.parametrize('processes, victims', [(2, (0, 1)), (4, (3,)), (4, (0, 1, 2, 3)), (2, (1,))])
def test_a_stop_signal_to_one_or_all_saves_the_same_step(
    processes: int, victims: tuple[int, ...], folder: Path, unbroken: Path
):
    workdir = folder / f'stop_{len(victims)}_of_{processes}'
    number = signal.SIGINT if victims == (1,) else signal.SIGTERM
    ended = finish_well(signalled(folder, workdir, Topology(processes, 1), number, *victims), ExitCode.STOPPED)
    (step,) = re.findall(r'stopped after step (\d+), which is saved', ended[0].errors)
    assert 7 <= int(step) < STEPS and CheckpointReader(workdir).complete_steps() == [int(step)]
    finish_well(launch(folder, workdir, Topology(processes, 1)))
    assert_same_end(folder, workdir, unbroken)


def test_what_jax_cannot_find_out_is_named():
    with pytest.raises(InputError, match='--distributed: .*--coordinator, --process_count, --process_id'):
        join_hosts.initialize_jax_distributed(None, None, None)


def test_a_stopped_process_may_take_its_time_until_it_has_left_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    watch, stages = StopSignalThread(), []
    watch.enter_stage(StopStage.SAVING)  # the stage after a stopped run
    peers = SimpleNamespace(disconnect=lambda: stages.append(watch.stage))
    monkeypatch.setattr(join_hosts, 'current_signal_thread', lambda: watch)
    monkeypatch.setattr(jax.distributed, 'shutdown', lambda: stages.append(watch.stage))
    with pytest.raises(RunStopped), join_hosts.multi_host_run(lambda _: peers, {}):
        raise RunStopped
    assert [*stages, watch.stage] == [StopStage.SAVING, StopStage.SAVING, StopStage.SAVED]


def test_a_stop_that_comes_when_all_is_done_does_nothing(monkeypatch: pytest.MonkeyPatch):
    watch = StopSignalThread()
    monkeypatch.setattr(join_hosts, 'current_signal_thread', lambda: watch)
    before = [signal.getsignal(number) for number in SIGNALS]
    with join_hosts.ignoring_stop_signals():
        signal.raise_signal(signal.SIGTERM)
    assert watch.stage is StopStage.NOTHING_TO_SAVE and [signal.getsignal(number) for number in SIGNALS] == before
    with join_hosts.ignoring_stop_signals():
        watch.number = signal.SIGTERM  # the signal thread has seen the signal
    assert watch.stage is StopStage.SAVING and not watch.is_ending


def test_code_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / 'a.py').write_text('x = 1\n')
    monkeypatch.setattr(join_hosts.efficient_attention, '__file__', str(tmp_path / '__init__.py'))
    before, again = join_hosts.code_digest(), join_hosts.code_digest()
    (tmp_path / 'a.py').write_text('x = 2\n')
    assert before == again != join_hosts.code_digest()


def test_jax_does_not_catch_sigterm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax.distributed, 'initialize', lambda *_, **__: None)
    join_hosts.initialize_jax_distributed('localhost:1', 2, 0)
    assert not jax.config.jax_enable_preemption_service
