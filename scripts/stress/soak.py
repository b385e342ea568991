"""Kills small runs at random moments and compares what they come to with a run that nobody killed.

python scripts/stress/soak.py --workdir runs/soak [--kills 100] [--runs pretraining,memory] [--seed 0]

Each run starts anew in an empty folder and is killed (SIGKILL) three to seven times. The moments are random within each
phase of an unbroken run in turn: imports, preparation, restoring or drawing the state, compilation, steps, an
evaluation, a save, its sealing, the end; reading, writing and sealing of an export. The same command then goes to the
end. Metrics, checkpoints and exports must be those of the unbroken run, bit by bit. The last line is one JSON object;
the exit code is 1 where something differs. A kill takes some ten seconds; how long all will take is said.
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

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

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_workdir
from efficient_attention.errors import RunError, require, require_at_least
from efficient_attention.processes.child_process import child_command
from efficient_attention.processes.phases import COMPILATION
from efficient_attention.whole_files import PARTIAL
from efficient_attention.workdir.checkpoint_writer import UNFINISHED
from scripts.stress.phase_moments import (
    NAMED,
    Event,
    Moment,
    Plan,
    moments,
    noting,
    phase_at,
    read_events,
    spans_of,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[2]
KILLS_EACH = (3, 7)  # of one run, at least and at most
ENOUGH = 20  # kills of one kind of run, to hit each of its phases
HANGING_SECONDS = 900.0  # after which a process counts as hanging
KILLED = -9


class Ended(NamedTuple):
    """A process that came to its end, or was killed."""

    code: int
    lines: list[str]  # of its standard error
    start: float
    end: float
    events: list[Event]

    @property
    def seconds_to_step(self) -> float:
        """From its start to the end of its first step; to its own end without one."""
        begun = [place for place, event in enumerate(self.events) if event.phase == COMPILATION]
        after = [event.time for event in self.events[begun[-1] + 1 :]] if begun else []
        return (after[0] if after else self.end) - self.start


def main() -> None:
    """Reads the flags, kills and compares each kind of run, prints one JSON object."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir',), options=options)
    from scripts.stress.soak_runs import RUNS  # after --help

    for name in options.runs:
        require(name in RUNS, '--runs', name, f'some of {", ".join(RUNS)}')
    require_at_least(1, '--kills', options.kills)
    names = [name for name in RUNS if name in options.runs] or list(RUNS)
    rng = random.Random(options.seed)
    shares = [options.kills // len(names) + (place < options.kills % len(names)) for place in range(len(names))]
    results = {
        name: soak(name, options.workdir.absolute() / name, kills, rng)
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
    """The flags of this command."""
    options = flags.FlagValues()
    define_workdir('Folder of the runs; what is in it is replaced.', options)
    flags.DEFINE_integer('kills', 100, 'Kills in all.', flag_values=options)
    flags.DEFINE_list('runs', [], 'Kinds of runs, with commas; all by default.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Of the moments.', flag_values=options)
    return options


def soak(
    name: str, folder: Path, kills: int, rng: random.Random, *fields: str, only: Sequence[str] = NAMED
) -> dict[str, Any]:
    """Kills one kind of run so often; says what the kills hit, how long a start takes and what differs at the end.

    `fields` are words of the command line that follow those of the kind, such as --config.train.steps=20; `only` are
    the phases in which kills come, all by default.
    """
    from scripts.stress.soak_compare import differences
    from scripts.stress.soak_runs import RUNS

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    RUNS[name].write_files(folder)
    unbroken, broken = folder / 'unbroken', folder / 'broken'
    expected = run_to_end([*RUNS[name].command(folder, unbroken), *fields], folder / 'phases')
    spans = spans_of(expected.events, expected.start, expected.end)
    say_estimate(name, kills, expected)
    plan = Plan(moments(rng, spans, only), spans)
    command, hits = [*RUNS[name].command(folder, broken), *fields], collections.Counter[str]()
    found: list[str] = []
    resumed: list[float] = []
    while hits.total() < kills:
        planned = plan.take(min(rng.randint(*KILLS_EACH), kills - hits.total()))
        hit = killed(command, broken, planned, RUNS[name].goes_on)
        plan.give_back(planned[len(hit) + 1 :])  # the first after them was tried in vain
        hits.update(hit)
        print(f'{name}: {hits.total()} of {kills} kills: {", ".join(hit)}', file=sys.stderr, flush=True)
        if RUNS[name].goes_on or not broken.exists():
            resumed.append(run_to_end(command, folder / 'phases').seconds_to_step)
        found += differences(broken, unbroken) + leftovers(folder)
        shutil.rmtree(broken)
    seconds = {'first': expected.seconds_to_step, 'resumed': statistics.median(resumed) if resumed else None}
    missed = sorted({span.phase for span in spans if span.phase in only} - set(hits))
    return {
        'kills': hits.total(),
        'hit': dict(hits),
        'not_hit': missed,
        'seconds_to_step': seconds,
        'differences': found,
    }


def say_estimate(name: str, kills: int, expected: Ended) -> None:
    """Says about how long the kills will take: most come after the compilation, and some runs go to their end."""
    seconds = kills * (0.8 + 1 / statistics.mean(KILLS_EACH)) * (expected.end - expected.start)
    print(f'{name}: {kills} kills take about {seconds / 60:.1f} minutes', file=sys.stderr, flush=True)


def killed(command: list[str], workdir: Path, planned: Sequence[Moment], goes_on: bool) -> list[str]:
    """Starts a command once for each moment and kills it then; returns what it was at. Breaks off at an end."""
    hit: list[str] = []
    for moment in planned:
        if workdir.exists() and not goes_on:
            break
        ended = run(command, workdir.with_name('phases'), moment)
        if ended.code != KILLED:
            check_ended(command, ended)
            break
        hit.append(phase_at(ended.events, ended.end))
    return hit


def leftovers(folder: Path) -> list[str]:
    """What was left half written below a folder, a line each."""
    return [f'{path} was left behind' for pattern in (PARTIAL, UNFINISHED) for path in folder.rglob(pattern)]


def run_to_end(command: list[str], noted: Path) -> Ended:
    """Runs a command that nobody kills; raises RunError where it fails."""
    ended = run(command, noted, None)
    check_ended(command, ended)
    return ended


def check_ended(command: list[str], ended: Ended) -> None:
    """Raises RunError where a process that was not killed has failed."""
    if ended.code:
        raise RunError(f'{" ".join(command)} ended with exit code {ended.code}: {"; ".join(ended.lines[-3:])}')


def run(command: list[str], noted: Path, kill_at: Moment | None) -> Ended:
    """Runs a command to its end, or kills it at a moment; raises RunError where it hangs.

    Args:
        command: program and arguments.
        noted: file of the phases that it notes.
        kill_at: None = never.
    """
    environment, start = noting(noted), time.monotonic()
    with subprocess.Popen(
        child_command(command), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        if kill_at:
            threading.Thread(target=kill, args=(process, noted, kill_at, start), daemon=True).start()
        try:
            said = process.communicate(timeout=HANGING_SECONDS)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            lines = process.communicate()[1].splitlines()
            raise RunError(
                f'{" ".join(command)} did not end in {HANGING_SECONDS:.0f} s: {"; ".join(lines[-3:])}'
            ) from None
    return Ended(process.returncode, said.splitlines(), start, time.monotonic(), read_events(noted))


def kill(process: subprocess.Popen, noted: Path, moment: Moment, start: float) -> None:
    """Kills a process when it is at the moment, unless it ends before."""
    if wait_for(moment, noted, start, lambda: process.poll() is None):
        process.kill()


if __name__ == '__main__':
    run_command(main)
