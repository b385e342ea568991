"""Resumes runs on other numbers of processes and devices: every pair of nine topologies, and a chain through all.

    python -m tests.topologies --folder /tmp/topologies [--tasks memory] [--topologies 1x1,2x2]

Each topology, {1, 2, 4} processes of {1, 2, 4} devices, trains each task to its end. Then each topology resumes the
run of every topology from its middle, and takes its link of a chain of resumed runs. The last line of the standard
output is a JSON object: for each task, the difference of losses from those of the run that wrote the checkpoint.

A resumed run is faulty if it reads other rows. It is faulty on the topology that wrote the checkpoint if a number or an
array is not bitwise equal, and on another topology if a loss differs by more than 1e-6 of its value. A line names each
faulty pair, and the exit code is then 1. A second call with the same folder does only what is missing, so changed code
needs a new folder.
"""

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.quick_compile import FLAGS

ROOT = Path(__file__).resolve().parent.parent
ROWS = 'rows-{}.jsonl'  # file in a workdir: the rows that each process has read, one line for each step
PROGRAM = (
    'from efficient_attention.programs import train as entry; from tests.topologies import run_jobs; run_jobs(entry)'
)
MIDDLE, END = 4, 8  # steps
LINK = 2  # steps of each topology in the chain
# the chain's task has dropout, an optimizer state, and a memory that is laid out with the batch rows
CHAINED = 'memory'
# Relative tolerance of a loss on another topology, which adds float32 in another order. Measured: 6.0e-7 in 113 pairs.
CLOSE = 1e-6


class Topology(NamedTuple):
    """The number of processes of a run and of devices of each process."""

    processes: int
    devices: int

    def __str__(self) -> str:
        return f'{self.processes}x{self.devices}'

    @property
    def size(self) -> int:
        """The number of devices of all processes."""
        return self.processes * self.devices


# Neighbours in this order, the links of the chain, differ in processes as well as in devices.
TOPOLOGIES = [Topology(*map(int, text)) for text in '11 22 41 14 21 42 12 44 24'.split()]


class Job(NamedTuple):
    """One of the training runs that a group of processes does one after another."""

    values: dict[str, Any]  # of the config
    workdir: str
    stop_at: int = 0  # the step after which the job stops; 0 = the config's last


# ---- in each process ----


def run_jobs(entry: Any) -> None:
    """Runs `train.py`, with all jobs of the environment variable JOBS in place of the one training run."""
    from efficient_attention.commands.command_line import run_command
    from efficient_attention.errors import RunStopped
    from efficient_attention.processes.graceful_stop import GracefulStop
    from efficient_attention.training import guarded_run, loop
    from efficient_attention.training.fill_config import fill_config

    train, next_batch, jit_step = loop.train, loop.Trainer.next_batch, loop.jit_train_step
    build_run = guarded_run.build_run
    # The runs of a config differ only in their workdirs, so they share one compiled step.
    built = functools.cache(lambda text: build_run(fill_config(json.loads(text)).config))
    jitted = functools.cache(lambda text: jit_step(built(text)))
    jobs = [Job(*job) for job in json.loads(Path(os.environ['JOBS']).read_text(encoding='utf-8'))]

    def train_all(_config: Any, _workdir: Path, **_opened: Any) -> None:
        import jax

        for job in jobs:
            text, log, taken = json.dumps(job.values, sort_keys=True), [], itertools.count(1)
            run = built(text)
            if 'step' not in vars(run.evaluation):
                object.__setattr__(run.evaluation, 'step', functools.cache(run.evaluation.step))

            def read(trainer: Any, batches: Iterator[Any], log: list = log, taken: Iterator[int] = taken) -> Any:
                batch = next_batch(trainer, batches)
                log.append([trainer.log.start_step + next(taken), digests(batch)])
                return batch

            guarded_run.build_run = lambda _config, run=run, **_opened: run
            loop.jit_train_step = lambda _run, text=text: jitted(text)
            loop.Trainer.next_batch = read
            GracefulStop.is_stop_due = lambda *_, stop_at=job.stop_at, log=log: bool(log) and log[-1][0] == stop_at
            with contextlib.suppress(RunStopped):
                train(run.config, Path(job.workdir))
            with (Path(job.workdir) / ROWS.format(jax.process_index())).open('a', encoding='utf-8') as file:
                file.writelines(json.dumps(line) + '\n' for line in log)

    loop.train = train_all
    run_command(entry.main)


def digests(batch: dict[str, Any]) -> list[str]:
    """Returns a digest of all arrays of each batch row, by which the rows are compared."""
    rows = len(next(iter(batch.values())))
    digest = [hashlib.sha256() for _ in range(rows)]
    for name in sorted(batch):
        for row, array in enumerate(batch[name]):
            digest[row].update(array.tobytes())
    return [one.hexdigest()[:16] for one in digest]


# ---- around the processes ----


def start(
    topology: Topology, arguments: Sequence[str], *, program: Sequence[str] = ('train.py',), **environment: str
) -> list[subprocess.Popen]:
    """Starts the processes of one run of a user's command; the caller ends them."""
    with socket.socket() as probe:
        probe.bind(('localhost', 0))
        address = f'localhost:{probe.getsockname()[1]}'
    command = [sys.executable, *program, *arguments]
    if topology.processes > 1:
        command += ['--distributed', f'--coordinator={address}', f'--process_count={topology.processes}']
    flags = f'--xla_force_host_platform_device_count={topology.devices} {FLAGS}'
    variables = os.environ | {'XLA_FLAGS': flags, 'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo', **environment}
    variables |= {'JAX_PLATFORMS': 'cpu'}
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    numbers = [[f'--process_id={number}'] if topology.processes > 1 else [] for number in range(topology.processes)]
    return [subprocess.Popen([*command, *number], cwd=ROOT, env=variables, **pipes) for number in numbers]


class Ended(NamedTuple):
    """The exit code and the output of a process."""

    code: int
    output: str
    errors: str


def finish(processes: Sequence[subprocess.Popen], seconds: float = 600) -> list[Ended]:
    """Waits for the processes to end, and kills those that have not."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
        return [Ended(process.returncode, *lines) for process, lines in zip(processes, said, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def train_jobs(topology: Topology, jobs: Sequence[Job], folder: Path) -> list[Ended]:
    """Starts a group of processes that does all jobs, and waits for its end."""
    path = folder / f'jobs-{topology}.json'
    path.write_text(json.dumps(jobs), encoding='utf-8')
    arguments = ['--config=tests/training/tiny_run.py', f'--workdir={folder / "unused"}']
    ended = finish(start(topology, arguments, program=('-c', PROGRAM), JOBS=str(path)), seconds=3600)
    failed = [one.errors for one in ended if one.code]
    if failed:
        raise RuntimeError(f'{topology}: ' + '\n'.join(failed))
    return ended


def task_values(folder: Path, topology: Topology) -> dict[str, dict[str, Any]]:
    """Returns the config of each task; the tasks differ in the mesh axes along which they use the devices."""
    from configs.lm.common import language_modelling_config
    from tests.tasks.test_language_modelling_memory import FIELDS
    from tests.training import tiny_fine_tuning, tiny_run

    fields = {'train.batch_size': 16, 'train.steps': END, 'train.log_every_steps': 1, 'checkpoint.every_steps': MIDDLE}
    fields |= {
        'eval.batch_size': 16,
        'eval.every_steps': MIDDLE,
        'train.micro_batches': 1,
        'mesh.fsdp': 1,
        'mesh.tensor': 1,
    }
    pretraining, memory = tiny_run.get_config(), language_modelling_config()
    for config in (pretraining, memory):
        config.data.source, config.data.cache = tiny_run.write_corpus(folder / 'corpus'), str(folder / 'cache')
    pretraining.update_from_flattened_dict(fields | {'mesh.fsdp': topology.size})
    memory.update_from_flattened_dict(FIELDS | fields | {'model.dropout_rate': 0.1})
    # Evaluations before the checkpoint count for the early stop of the resumed run.
    early = {'checkpoint.best_metric': 'fine_tuning_loss', 'checkpoint.best_mode': 'max', 'train.early_stop': 2}
    early |= {'examples.buckets': (16,), 'eval.every_steps': 2, 'mesh.fsdp': min(topology.size, 2)}
    tuning = tiny_fine_tuning.tiny_values(folder / 'tuning', **fields | early)
    return {'pretraining': pretraining.to_dict(), 'memory': memory.to_dict(), 'fine_tuning': tuning}


def losses(workdir: Path) -> dict[tuple[int, str], dict[str, float]]:
    """Returns the lines of metrics by step and split, without speeds, which depend on a clock."""
    from efficient_attention.workdir.metrics import SPEEDS, read_metrics

    left_out = SPEEDS | {'step', 'split'}
    return {
        (line['step'], line['split']): {name: value for name, value in line.items() if name not in left_out}
        for line in read_metrics(workdir)
    }


def rows_read(workdir: Path, processes: int) -> dict[int, list[str]]:
    """Returns the rows of each global batch in their order, joined from the files of all processes."""
    blocks = []
    for number in range(processes):
        lines = (workdir / ROWS.format(number)).read_text(encoding='utf-8').splitlines()
        blocks.append({step: rows for step, rows in map(json.loads, lines)})
    return {step: list(itertools.chain(*(block[step] for block in blocks))) for step in blocks[0]}


def saved_in_the_middle(workdir: Path, copy: Path) -> None:
    """Copies a run and removes its later checkpoints, as if it had been killed after its middle."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(workdir, copy, ignore=shutil.ignore_patterns('rows-*', 'tensorboard', 'lock'))
    for step in (copy / 'checkpoints').iterdir():
        if step.name.isdigit() and int(step.name) > MIDDLE:
            shutil.rmtree(step)


def difference(workdir: Path, expected: Path) -> float:
    """Returns the largest relative difference of two runs' losses after the middle; infinite where their lines
    differ.
    """
    found, wanted = losses(workdir), losses(expected)
    if list(found) != list(wanted):
        return math.inf
    after = [(found[at], wanted[at]) for at in found if at[0] > MIDDLE]
    pairs = [(one[name], other[name]) for one, other in after for name in other if name.endswith('loss')]
    relative = [abs(a - b) / max(abs(b), 1e-30) for a, b in pairs]
    return max(relative, key=lambda one: math.inf if math.isnan(one) else one, default=math.inf)


def is_bitwise(workdir: Path, expected: Path) -> bool:
    """Returns whether all metrics of two runs and all arrays of their last checkpoints are bitwise equal."""
    import jax
    import numpy as np

    if losses(workdir) != losses(expected):
        return False
    states = [last_state(place) for place in (workdir, expected)]
    equal = jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), *states)
    return all(jax.tree.leaves(equal))


def last_state(workdir: Path) -> Any:
    """Returns the arrays of a run's last checkpoint, on one device."""
    import numpy as np
    import orbax.checkpoint as ocp

    from efficient_attention.workdir.checkpoint_reader import CheckpointReader

    step = CheckpointReader(workdir).latest_step()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        folder = workdir / 'checkpoints' / str(step) / 'state'
        tree = ocp.PyTreeCheckpointHandler().metadata(folder).tree
        import jax

        options = jax.tree.map(lambda _leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(folder, args=ocp.args.PyTreeRestore(restore_args=options))


class Pair(NamedTuple):
    """The result of a run that was resumed on a topology."""

    saved: Topology  # the topology that wrote the checkpoint
    on: Topology  # which went on
    has_same_rows: bool
    is_bitwise: bool
    difference: float  # relative

    @property
    def fault(self) -> str:
        """Returns one line that names the fault; '' where there is none."""
        if not self.has_same_rows:
            return f'{self.saved} on {self.on}: other rows were read'
        if self.saved == self.on and not self.is_bitwise:
            return f'{self.saved} on {self.on}: not bitwise the same'
        if not self.difference <= CLOSE:  # nor is NaN
            return f'{self.saved} on {self.on}: a loss differs by {self.difference:.2g} of its value'
        return ''


def run_all(folder: Path, tasks: Sequence[str], topologies: Sequence[Topology]) -> dict[str, Any]:
    """Trains, resumes and compares all runs; prints a line for each group of processes."""
    folder.mkdir(parents=True, exist_ok=True)
    begun, name = time.monotonic(), '-'.join(tasks if topologies == TOPOLOGIES else [*tasks, *map(str, topologies)])
    for topology in topologies:
        values = task_values(folder, topology)
        jobs = [Job(values[task], str(folder / f'{topology}-{task}')) for task in tasks]
        if topology == topologies[0] and CHAINED in tasks:
            jobs.append(Job(chained(values[CHAINED], topologies), str(folder / 'whole')))
        train_once(topology, jobs, folder / f'trained-{topology}-{name}')
        print(f'{topology} trained, {time.monotonic() - begun:.0f} s', flush=True)
    for topology in topologies:
        stamp = folder / f'went-on-{topology}-{name}'
        train_once(topology, [] if stamp.exists() else list(continuations(folder, topology, topologies, tasks)), stamp)
        print(f'{topology} went on, {time.monotonic() - begun:.0f} s', flush=True)
    found = {task: summary(compared(folder, task, topologies)) for task in tasks}
    return found | ({'chain': compared_chain(folder)} if CHAINED in tasks else {})


def train_once(topology: Topology, jobs: Sequence[Job], stamp: Path) -> None:
    """Does the jobs, unless an earlier call of the same command has done them."""
    if not stamp.exists():
        train_jobs(topology, jobs, stamp.parent)
        stamp.touch()


def continuations(
    folder: Path, topology: Topology, topologies: Sequence[Topology], tasks: Sequence[str]
) -> Iterator[Job]:
    """Yields the jobs that one topology resumes: the runs of all topologies, and its link of the chain."""
    values = task_values(folder, topology)
    for task in tasks:
        for other in topologies:
            copy = folder / f'{other}-{task}-on-{topology}'
            saved_in_the_middle(folder / f'{other}-{task}', copy)
            yield Job(values[task], str(copy))
        if task == CHAINED:
            stop_at = LINK * (topologies.index(topology) + 1)
            yield Job(chained(values[task], topologies), str(folder / 'chain'), stop_at=stop_at)


def chained(values: dict[str, Any], topologies: Sequence[Topology]) -> dict[str, Any]:
    """Returns the config of the chain, whose steps suffice for a link of each topology."""
    return values | {'train': values['train'] | {'steps': LINK * len(topologies)}}


def compared(folder: Path, task: str, topologies: Sequence[Topology]) -> list[Pair]:
    """Compares all pairs of one task."""
    read = rows_read(folder / f'{topologies[0]}-{task}', topologies[0].processes)
    after = {step: rows for step, rows in read.items() if step > MIDDLE}
    assert len({row for rows in after.values() for row in rows}) > len(after) > 0
    pairs = []
    for saved, on in itertools.product(topologies, topologies):
        expected, workdir = folder / f'{saved}-{task}', folder / f'{saved}-{task}-on-{on}'
        is_same = rows_read(expected, saved.processes) == read and rows_read(workdir, on.processes) == after
        pairs.append(Pair(saved, on, is_same, is_bitwise(workdir, expected), difference(workdir, expected)))
    return pairs


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Returns the results of one task's pairs as they are printed."""
    return {
        'pairs': len(pairs),
        'bitwise': [f'{pair.saved} on {pair.on}' for pair in pairs if pair.is_bitwise],
        'greatest': max(pair.difference for pair in pairs),
        'faults': [pair.fault for pair in pairs if pair.fault],
    }


def compared_chain(folder: Path) -> dict[str, Any]:
    """Returns the largest relative difference between the chain's losses and those of an unbroken run on its first
    topology.
    """
    whole, chain = losses(folder / 'whole'), losses(folder / 'chain')
    steps = [at for at in whole if at[1] == 'train']
    assert [at for at in chain if at[1] == 'train'] == steps
    greatest = max(abs(whole[at]['loss'] - chain[at]['loss']) / abs(whole[at]['loss']) for at in steps)
    return {'greatest': greatest, 'faults': []}  # no limit applies: the differences of all links add up


def main() -> None:
    """Reads the arguments, does all runs, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--folder', type=Path, required=True)
    parser.add_argument('--tasks', default='pretraining,memory,fine_tuning')
    parser.add_argument('--topologies', default=','.join(map(str, TOPOLOGIES)))
    options = parser.parse_args()
    os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(options.folder / 'programs'))
    os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
    topologies = [Topology(*map(int, text.split('x'))) for text in options.topologies.split(',')]
    found = run_all(options.folder, options.tasks.split(','), topologies)
    print(json.dumps(found), flush=True)
    sys.exit(said_faults(found))


def said_faults(found: dict[str, Any]) -> int:
    """Prints a line for each fault; returns the exit code."""
    faults = [f'{task}: {fault}' for task, result in found.items() for fault in result['faults']]
    for fault in faults:
        print(fault, file=sys.stderr)
    return int(bool(faults))


if __name__ == '__main__':
    main()
