"""Stops small training runs at random moments and says how they end.

    python scripts/measure_stops.py --folder cache/stops [--stops 50] [--seed 0]

An unbroken run comes first. Then the same command is started again and again, and gets SIGTERM or SIGINT at a moment
between its start and the time that the unbroken run took, until it has finished; then anew, from the preparation of the
corpus on, until there were so many stops. Each finished run is compared with the unbroken one. The last line is one
JSON object; the exit code is 1 where a stop was not clean, a signal that came to nothing included, or a run not equal.
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
from efficient_attention.errors import RunError
from scripts.soak_compare import differences

ROOT = Path(__file__).resolve().parents[1]
LINES = re.compile(r'^(?:stopped (?:by|after step)|ended by|interrupted)', re.MULTILINE)
ENDING_SECONDS = 5.0  # that a run may take from a signal to its end where it ends as it would have without it
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
    'checkpoint.keep': 1,  # a stop saves steps that the unbroken run does not
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
        """Whether it said so in one line and ended with a documented code, or had not begun, or was at its end."""
        if self.code == 0:  # it was about to end anyhow, or it did not notice
            return self.grace <= ENDING_SECONDS
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
    seconds = unbroken_run(folder / 'unbroken')
    print(f'unbroken: {seconds:.1f} s')
    stops, found = stopped_runs(folder, options.stops, random.Random(options.seed), seconds)
    result = summary(stops, found)
    print(json.dumps(result))
    if result['not_clean'] or result['differences']:
        raise RunError(
            f'{len(result["not_clean"])} stop(s) were not clean, {len(result["differences"])} difference(s) were found'
        )


def command(folder: Path) -> list[str]:
    """Trains in a folder, with a corpus that is prepared there."""
    fields = FIELDS | {'data.cache': folder / 'cache'}
    words = [f'--config.{name}={value}' for name, value in fields.items()]
    return child_command(
        [sys.executable, 'train.py', '--config=configs/quickstart.py', f'--workdir={folder / "run"}', *words]
    )


def unbroken_run(folder: Path) -> float:
    """Seconds of a run from its start to its end."""
    start = time.monotonic()
    done = subprocess.run(command(folder), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f'error: the unbroken run ended with {done.returncode}:\n{done.stderr[-2000:]}')
    return time.monotonic() - start


def stopped_runs(
    folder: Path, count: int, moments: random.Random, seconds: float
) -> tuple[list[Stop], list[list[str]]]:
    """The stops, and of each run that was finished what differs from the one in `folder`/unbroken."""
    stops: list[Stop] = []
    found: list[list[str]] = []
    stopped = folder / 'stopped'
    while len(stops) < count:
        number = moments.choice((signal.SIGINT, signal.SIGTERM))
        stop = stop_once(command(stopped), number, moments.uniform(0, seconds))
        if stop is not None:
            stops.append(stop)
            print(
                f'{stop.name:>7} after {stop.moment:6.2f} s: code {stop.code:>4}, {stop.grace:5.2f} s, '
                f'{stop.lines} line(s), clean: {stop.is_clean}; before: {stop.said[:60]}',
                flush=True,
            )
        if stop is None or stop.code == 0 or len(stops) == count:
            finish(stopped)
            found.append(differences(stopped / 'run', folder / 'unbroken' / 'run', was_stopped=True))
            shutil.rmtree(stopped)
    return stops, found


def stop_once(words: Sequence[str], number: signal.Signals, moment: float) -> Stop | None:
    """Starts a command and sends it a signal after `moment` seconds; None where it had ended before."""
    pipes = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE}
    with subprocess.Popen(words, cwd=ROOT, env=environment(), text=True, **pipes) as process:
        time.sleep(moment)
        start = time.monotonic()
        if process.poll() is not None:
            process.communicate()
            return None
        process.send_signal(number)
        said = process.communicate()[1]
        grace = time.monotonic() - start
    lines = said.splitlines()
    before = [line for line in lines if not LINES.match(line)]
    return Stop(number.name, moment, grace, process.returncode, len(LINES.findall(said)), before[-1] if before else '')


def finish(folder: Path) -> None:
    """Lets the run in a folder go on to its end."""
    done = subprocess.run(command(folder), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f'error: the run does not go on; it ended with {done.returncode}:\n{done.stderr[-2000:]}')


def environment() -> dict[str, str]:
    """Of the runs: the CPU, which is there everywhere."""
    return os.environ | {'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}


def summary(stops: Sequence[Stop], found: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The figures of all stops, and of the runs whose differences were found."""
    graces = [stop.grace for stop in stops]
    return {
        'stops': len(stops),
        'codes': dict(sorted(collections.Counter(stop.code for stop in stops).items())),
        'not_clean': [stop._asdict() for stop in stops if not stop.is_clean],
        'grace_median': round(statistics.median(graces), 2),
        'grace_longest': round(max(graces), 2),
        'runs_finished': len(found),
        'runs_equal_to_the_unbroken': sum(not lines for lines in found),
        'differences': [line for lines in found for line in lines],
    }


if __name__ == '__main__':
    run_command(main)
