"""Kills and resumes small runs at random moments, and compares their results with a run that was never killed.

python scripts/stress/soak.py --workdir runs/soak [--kills 100] [--runs pretraining,memory] [--seed 0]

Each run starts in an empty folder and is killed (SIGKILL) three to seven times. The moments are random within each
phase of an unbroken run in turn: imports, preparation, restoring or initialising the state, compilation, steps, an
evaluation, a save and its checksums, the end. An export has the phases reading, writing and checksums. Then the same
command runs to the end. Metrics, checkpoints and exports must equal the unbroken run's, bit by bit. The last line of
output is one JSON object; the exit code is 1 if something differs. A kill takes some ten seconds; the expected total
time is printed.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import collections
import json
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from efficient_attention.atomic_files import PARTIAL
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_workdir
from efficient_attention.errors import RunError, require, require_at_least
from efficient_attention.processes.child_process import command_tied_to_parent
from efficient_attention.processes.phase_log import COMPILATION
from efficient_attention.workdir.checkpoint_writer import UNFINISHED
from scripts.stress.signal_moments import (
    NAMED,
    MomentQueue,
    PhaseEvent,
    SignalMoment,
    phase_at,
    phase_logging_environment,
    phase_spans,
    random_moments,
    read_phase_events,
    wait_for_moment,
)

ROOT = Path(__file__).resolve().parents[2]
KILLS_EACH = (3, 7)  # minimum and maximum number of kills per run
ENOUGH = 20  # if one kind of run is killed at least this often, a kill must hit every phase
HANGING_SECONDS = 900.0  # a process that runs longer than this counts as hanging
KILLED = -9


class ProcessResult(NamedTuple):
    """How a process ended, by itself or by a kill: exit code, error lines, times and phases."""

    code: int
    lines: list[str]  # lines that the process wrote to standard error
    start: float
    end: float
    events: list[PhaseEvent]

    @property
    def seconds_to_first_step(self) -> float:
        """Seconds of the process until its first step has ended; without a step, until the process has ended."""
        begun = [place for place, event in enumerate(self.events) if event.phase == COMPILATION]
        after = [event.time for event in self.events[begun[-1] + 1 :]] if begun else []
        return (after[0] if after else self.end) - self.start


def main() -> None:
    """Reads the flags, kills and compares runs of each kind, and prints one JSON object."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir',), options=options)
    from scripts.stress.small_training_runs import RUNS  # imported late, so that --help is fast

    for name in options.runs:
        require(name in RUNS, '--runs', name, f'some of {", ".join(RUNS)}')
    require_at_least(1, '--kills', options.kills)
    names = [name for name in RUNS if name in options.runs] or list(RUNS)
    rng = random.Random(options.seed)
    shares = [options.kills // len(names) + (place < options.kills % len(names)) for place in range(len(names))]
    results = {
        name: kill_and_compare(name, options.workdir.absolute() / name, kills, rng)
        for name, kills in zip(names, shares, strict=True)
    }
    print(json.dumps(results))
    found = [line for result in results.values() for line in result['differences']]
    if found:
        raise RunError(f'{len(found)} difference(s) after a kill; the first: {found[0]}')
    for name, result in results.items():
        if result['not_hit'] and result['kills'] >= ENOUGH:
            raise RunError(f'no kill of {name} hit: {", ".join(result["not_hit"])}')


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_workdir('Folder of the runs; its content is replaced.', options)
    flags.DEFINE_integer('kills', 100, 'Total number of kills.', flag_values=options)
    flags.DEFINE_list('runs', [], 'Kinds of runs, separated by commas; all by default.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Seed of the moments.', flag_values=options)
    return options


def kill_and_compare(
    name: str, folder: Path, kills: int, rng: random.Random, *fields: str, only: Sequence[str] = NAMED
) -> dict[str, Any]:
    """Kills and resumes runs of one kind; returns the phases of the kills, the seconds to resume, and differences.

    Differences are between finished runs and a run that was never killed. `fields` are added to the command line, such
    as --config.train.steps=20. `only` are the phases in which kills come, by default all.
    """
    from scripts.stress.compare_resumed_run import folder_differences
    from scripts.stress.small_training_runs import RUNS

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    RUNS[name].write_files(folder)
    unbroken, broken = folder / 'unbroken', folder / 'broken'
    expected = run_to_end([*RUNS[name].command(folder, unbroken), *fields], folder / 'phases')
    spans = phase_spans(expected.events, expected.start, expected.end)
    print_time_estimate(name, kills, expected)
    plan = MomentQueue(random_moments(rng, spans, only), spans)
    command, hits = [*RUNS[name].command(folder, broken), *fields], collections.Counter[str]()
    found: list[str] = []
    resumed: list[float] = []
    while hits.total() < kills:
        planned = plan.take_moments(min(rng.randint(*KILLS_EACH), kills - hits.total()))
        hit = kill_at_moments(command, broken, planned, RUNS[name].goes_on)
        # If the run ended before one of its moments, that moment counts as used; the later ones return to the queue.
        plan.return_moments(planned[len(hit) + 1 :])
        hits.update(hit)
        print(f'{name}: {hits.total()} of {kills} kills: {", ".join(hit)}', file=sys.stderr, flush=True)
        if RUNS[name].goes_on or not broken.exists():
            resumed.append(run_to_end(command, folder / 'phases').seconds_to_first_step)
        found += folder_differences(broken, unbroken) + unfinished_files(folder)
        shutil.rmtree(broken)
    seconds = {'first': expected.seconds_to_first_step, 'resumed': statistics.median(resumed) if resumed else None}
    missed = sorted({span.phase for span in spans if span.phase in only} - set(hits))
    return {
        'kills': hits.total(),
        'hit': dict(hits),
        'not_hit': missed,
        'seconds_to_step': seconds,
        'differences': found,
    }


def print_time_estimate(name: str, kills: int, expected: ProcessResult) -> None:
    """Prints the approximate minutes of all kills of one kind of run."""
    seconds = kills * (0.8 + 1 / statistics.mean(KILLS_EACH)) * (expected.end - expected.start)
    print(f'{name}: {kills} kills take about {seconds / 60:.1f} minutes', file=sys.stderr, flush=True)


def kill_at_moments(command: list[str], workdir: Path, planned: Sequence[SignalMoment], goes_on: bool) -> list[str]:
    """Starts a command once per given moment, kills it at that moment, and returns the phases in which it was killed.

    Stops early if a process ends before its moment.
    """
    hit: list[str] = []
    for moment in planned:
        if workdir.exists() and not goes_on:
            break
        ended = run_or_kill(command, workdir.with_name('phases'), moment)
        if ended.code != KILLED:
            check_exit_code(command, ended)
            break
        hit.append(phase_at(ended.events, ended.end))
    return hit


def unfinished_files(folder: Path) -> list[str]:
    """Returns a line for each unfinished file or folder that a killed run has left behind."""
    return [f'{path} was left behind' for pattern in (PARTIAL, UNFINISHED) for path in folder.rglob(pattern)]


def run_to_end(command: list[str], noted: Path) -> ProcessResult:
    """Runs a command until it ends; raises RunError if it fails."""
    ended = run_or_kill(command, noted, None)
    check_exit_code(command, ended)
    return ended


def check_exit_code(command: list[str], ended: ProcessResult) -> None:
    """Raises RunError if a process failed without being killed."""
    if ended.code:
        raise RunError(f'{" ".join(command)} ended with exit code {ended.code}: {"; ".join(ended.lines[-3:])}')


def run_or_kill(command: list[str], noted: Path, kill_at: SignalMoment | None) -> ProcessResult:
    """Runs a command until it ends, or kills it at a given moment; raises RunError if it hangs.

    Args:
        command: program and arguments.
        noted: the file into which the process logs its phases.
        kill_at: the moment of the kill; None = never.
    """
    environment, start = phase_logging_environment(noted), time.monotonic()
    with subprocess.Popen(
        command_tied_to_parent(command),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if kill_at:
            threading.Thread(target=kill_at_moment, args=(process, noted, kill_at, start), daemon=True).start()
        try:
            said = process.communicate(timeout=HANGING_SECONDS)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            lines = process.communicate()[1].splitlines()
            raise RunError(
                f'{" ".join(command)} did not end in {HANGING_SECONDS:.0f} s: {"; ".join(lines[-3:])}'
            ) from None
    return ProcessResult(process.returncode, said.splitlines(), start, time.monotonic(), read_phase_events(noted))


def kill_at_moment(process: subprocess.Popen, noted: Path, moment: SignalMoment, start: float) -> None:
    """Waits for a given moment and then kills a process, unless the process ends before."""
    if wait_for_moment(moment, noted, start, lambda: process.poll() is None):
        process.kill()


if __name__ == '__main__':
    run_command(main)
