"""Stops small training runs at random moments and says how they end.

    python scripts/measure_stops.py --folder cache/stops [--stops 50] [--seed 0]

An unbroken run comes first. Then the same command is started again and again, and gets SIGTERM or SIGINT at a moment
between its start and the time that the unbroken run took, until it has finished; then anew, from the preparation of the
corpus on, until there were so many stops. Each finished run is compared with the unbroken one. The last line is one
JSON object.
"""

from efficient_attention.commands.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

import collections
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from efficient_attention.commands.child_process import child_command
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_path
from efficient_attention.workdir.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]
LINES = re.compile(r'^(?:stopped (?:by|after step)|ended by|interrupted)', re.MULTILINE)
CLOCK = {'steps_per_second', 'tokens_per_second', 'waiting_share', 'flops_utilisation'}
FIELDS = {
    'data.source': 'text:docs/*.md#paragraphs',
    'data.vocab_size': 300,
    'data.length': 64,
    'data.max_masked': 10,
    'model.width': 32,
    'model.heads': 2,
    'model.layers': 1,
    'train.steps': 60,
    'train.batch_size': 8,
    'train.log_every_steps': 10,
    'eval.every_steps': 20,
    'eval.batch_size': 8,
    'checkpoint.every_steps': 10,
}


class Stop(NamedTuple):
    """How a process ended that got a signal."""

    name: str  # of the signal
    moment: float  # seconds from its start to the signal
    grace: float  # seconds from the signal to its end
    code: int  # negative: killed by the signal of that number, before Python ran a line of the command
    lines: int  # that say that it was stopped
    said: str  # the last line before them

    @property
    def is_clean(self) -> bool:
        """Whether it said so in one line and ended with a documented code, or had not begun."""
        return (self.code in (3, 130, 143) and self.lines == 1) or self.code in (-signal.SIGINT, -signal.SIGTERM)


def main() -> None:
    """Reads the flags, measures and prints a table and the summary."""
    options = flags.FlagValues()
    define_path('folder', 'Folder of the runs; what is in it is deleted.', Path('cache/stops'), options)
    flags.DEFINE_integer('stops', 50, 'Signals to send.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Of the moments.', flag_values=options)
    parse_flags(sys.argv, options=options)
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    seconds, expected = unbroken_run(folder / 'unbroken')
    print(f'unbroken: {seconds:.1f} s')
    stops, same = stopped_runs(folder / 'stopped', options.stops, random.Random(options.seed), seconds, expected)
    print(json.dumps(summary(stops, same)))


def command(folder: Path) -> list[str]:
    """Trains in a folder, with a corpus that is prepared there."""
    fields = FIELDS | {'data.cache': folder / 'cache'}
    words = [f'--config.{name}={value}' for name, value in fields.items()]
    return child_command(
        [sys.executable, 'train.py', '--config=configs/quickstart.py', f'--workdir={folder / "run"}', *words]
    )


def unbroken_run(folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Seconds of a run from its start to its end, and its metrics."""
    start = time.monotonic()
    done = subprocess.run(command(folder), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f'error: the unbroken run ended with {done.returncode}:\n{done.stderr[-2000:]}')
    return time.monotonic() - start, comparable(folder / 'run')


def stopped_runs(
    folder: Path, count: int, moments: random.Random, seconds: float, expected: list[dict[str, Any]]
) -> tuple[list[Stop], list[bool]]:
    """The stops, and of each run that was finished whether its held-out metrics are those of the unbroken one."""
    stops: list[Stop] = []
    same: list[bool] = []
    while len(stops) < count:
        number = moments.choice((signal.SIGINT, signal.SIGTERM))
        stop = stop_once(command(folder), number, moments.uniform(0, seconds))
        if stop is not None:
            stops.append(stop)
            print(
                f'{stop.name:>7} after {stop.moment:6.2f} s: code {stop.code:>4}, {stop.grace:5.2f} s, '
                f'{stop.lines} line(s), clean: {stop.is_clean}; before: {stop.said[:60]}',
                flush=True,
            )
        if stop is None or len(stops) == count:
            finish(folder)
            same.append(comparable(folder / 'run') == expected)
            shutil.rmtree(folder)
    return stops, same


def stop_once(words: Sequence[str], number: signal.Signals, moment: float) -> Stop | None:
    """Starts a command and sends it a signal after `moment` seconds; None where it had ended before."""
    pipes = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE}
    with subprocess.Popen(words, cwd=ROOT, env=environment(), text=True, **pipes) as process:
        time.sleep(moment)
        start = time.monotonic()
        process.send_signal(number)
        said = process.communicate()[1]
        grace = time.monotonic() - start
    lines = said.splitlines()
    before = [line for line in lines if not LINES.match(line)]
    if process.returncode == 0:
        return None
    return Stop(number.name, moment, grace, process.returncode, len(LINES.findall(said)), before[-1] if before else '')


def finish(folder: Path) -> None:
    """Lets the run in a folder go on to its end."""
    done = subprocess.run(command(folder), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f'error: the run does not go on; it ended with {done.returncode}:\n{done.stderr[-2000:]}')


def environment() -> dict[str, str]:
    """Of the runs: the CPU, which is there everywhere."""
    return os.environ | {'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}


def comparable(workdir: Path) -> list[dict[str, Any]]:
    """The held-out metrics of a run; a stop ends an interval of the others, so that their means are of fewer steps."""
    lines = [line for line in read_metrics(workdir) if line['split'] == 'held_out']
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def summary(stops: Sequence[Stop], same: Sequence[bool]) -> dict[str, Any]:
    """The figures of all stops and runs."""
    graces = [stop.grace for stop in stops]
    return {
        'stops': len(stops),
        'codes': dict(sorted(collections.Counter(stop.code for stop in stops).items())),
        'not_clean': [stop._asdict() for stop in stops if not stop.is_clean],
        'grace_median': round(statistics.median(graces), 2),
        'grace_longest': round(max(graces), 2),
        'runs_finished': len(same),
        'runs_equal_to_the_unbroken': sum(same),
    }


if __name__ == '__main__':
    run_command(main)
