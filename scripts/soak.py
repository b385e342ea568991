"""Kills small runs at random moments and compares what they come to with a run that nobody killed.

python scripts/soak.py --workdir runs/soak [--kills 100] [--runs pretraining,memory] [--seed 0]

Each run starts anew in an empty folder and is killed (SIGKILL) three to seven times, wherever it is: while Python
imports, data are prepared, programs compile, between steps, in an evaluation, a save or an export. The same command
then goes to the end. Metrics, checkpoints and exports must be those of the unbroken run, bit by bit. The last line is
one JSON object; the exit code is 1 where something differs. A kill takes some ten seconds.
"""

from efficient_attention.commands.stopping import catch_stop_signals

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from efficient_attention.commands.child_process import child_command
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_workdir
from efficient_attention.errors import RunError, require, require_at_least
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.checkpoint_writer import UNFINISHED

ROOT = Path(__file__).resolve().parent.parent
KILLS_EACH = (3, 7)  # of one run, at least and at most
LATE_SECONDS = 0.4  # a kill comes up to so long after a line
HANGING_SECONDS = 900.0  # after which a process counts as hanging
KILLED = -9


class Moment(NamedTuple):
    """When a process is killed: so long after it has printed so many lines."""

    lines: int
    seconds: float


class Ended(NamedTuple):
    """A process that came to its end, or was killed."""

    code: int
    lines: list[str]  # of its standard error
    seconds_to_step: float  # from its start to the first line of a step, or to its end without one


def main() -> None:
    """Reads the flags, kills and compares each kind of run, prints one JSON object."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir',), options=options)
    from scripts.soak_runs import RUNS  # after --help

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


def define_flags() -> flags.FlagValues:
    """The flags of this command."""
    options = flags.FlagValues()
    define_workdir('Folder of the runs; what is in it is replaced.', options)
    flags.DEFINE_integer('kills', 100, 'Kills in all.', flag_values=options)
    flags.DEFINE_list('runs', [], 'Kinds of runs, with commas; all by default.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Of the moments.', flag_values=options)
    return options


def soak(name: str, folder: Path, kills: int, rng: random.Random, *fields: str) -> dict[str, Any]:
    """Kills one kind of run so often; says what the kills hit, how long a start takes and what differs at the end.

    `fields` are words of the command line that follow those of the kind, such as --config.train.steps=20.
    """
    from scripts.soak_compare import differences
    from scripts.soak_runs import RUNS

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    RUNS[name].write_files(folder)
    unbroken, broken = folder / 'unbroken', folder / 'broken'
    expected = run_to_end([*RUNS[name].command(folder, unbroken), *fields])
    command, hits = [*RUNS[name].command(folder, broken), *fields], collections.Counter[str]()
    found: list[str] = []
    resumed: list[float] = []
    while hits.total() < kills:
        count = min(rng.randint(*KILLS_EACH), kills - hits.total())
        for hit in killed(command, broken, [moment(rng, expected) for _ in range(count)], RUNS[name].goes_on):
            hits[hit] += 1
            print(f'{name}: kill {hits.total()} of {kills}: {hit}', file=sys.stderr, flush=True)
        if RUNS[name].goes_on or not broken.exists():
            resumed.append(run_to_end(command).seconds_to_step)
        found += differences(broken, unbroken)
        shutil.rmtree(broken)
    seconds = {'first': expected.seconds_to_step, 'resumed': statistics.median(resumed) if resumed else None}
    return {'kills': hits.total(), 'hit': dict(hits), 'seconds_to_step': seconds, 'differences': found}


def killed(command: list[str], workdir: Path, moments: list[Moment], goes_on: bool) -> Iterator[str]:
    """Starts a command once for each moment and kills it then; gives what it was at. Ends where it came to its end."""
    for kill_at in moments:
        if workdir.exists() and not goes_on:
            return
        ended = run(command, kill_at)
        if ended.code != KILLED:
            check_ended(command, ended)
            return
        yield phase(ended.lines, workdir)


def moment(rng: random.Random, expected: Ended) -> Moment:
    """A random moment: half of them at any time up to the first step, half after any line of the unbroken run."""
    if rng.random() < 0.5:
        return Moment(0, rng.uniform(0, expected.seconds_to_step))
    return Moment(rng.randint(1, max(len(expected.lines), 1)), rng.uniform(0, LATE_SECONDS))


def run_to_end(command: list[str]) -> Ended:
    """Runs a command that nobody kills; raises RunError where it fails."""
    ended = run(command, None)
    check_ended(command, ended)
    return ended


def check_ended(command: list[str], ended: Ended) -> None:
    """Raises RunError where a process that was not killed has failed."""
    if ended.code:
        raise RunError(f'{" ".join(command)} ended with exit code {ended.code}: {"; ".join(ended.lines[-3:])}')


def run(command: list[str], kill_at: Moment | None) -> Ended:
    """Runs a command to its end, or kills it at a moment; raises RunError where it hangs."""
    start = time.monotonic()
    is_by_time = kill_at is not None and not kill_at.lines
    lines: list[str] = []
    seconds_to_step = 0.0
    with subprocess.Popen(
        child_command(command), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        killer = threading.Timer(kill_at.seconds if kill_at and is_by_time else HANGING_SECONDS, process.kill)
        killer.start()
        for line in process.stderr or ():
            lines.append(line.rstrip())
            if line.startswith('step ') and not seconds_to_step:
                seconds_to_step = time.monotonic() - start
            if kill_at and len(lines) == kill_at.lines:
                time.sleep(kill_at.seconds)
                process.kill()
        code = process.wait()
    is_hanging = not is_by_time and not killer.is_alive()
    killer.cancel()
    if is_hanging:
        raise RunError(f'{" ".join(command)} did not end in {HANGING_SECONDS:.0f} s: {"; ".join(lines[-3:])}')
    return Ended(code, lines, seconds_to_step or time.monotonic() - start)


def phase(lines: list[str], workdir: Path) -> str:
    """What a process was at when it was killed, told from what it left in the workdir and from its last lines."""
    for folder in workdir.rglob('checkpoints'):
        reader = CheckpointReader(folder.parent)
        if list(folder.glob(UNFINISHED)) or reader.written_steps() != reader.steps():
            return 'save'
    if not lines:
        return 'imports'
    if not any('parameters on' in line for line in lines):
        return 'preparation'
    return 'steps or evaluation' if any(line.startswith('step ') for line in lines) else 'compilation'


if __name__ == '__main__':
    run_command(main)
