"""Sends stop signals to small training runs at random moments of every phase, and checks how the runs end.

    python scripts/stress/measure_stops.py --folder cache/stops [--stops 50] [--seed 0]

The first run is not stopped. Then the same command is started again and again. It gets SIGTERM or SIGINT at a random
moment of each phase in turn. After three to seven stops the run goes to its end and is compared with the unstopped run.
Then a new run starts, with the preparation of the corpus. `scripts/stress/check_stopped_run.py` judges each stop. The
seed determines moments and signals. The last line of output is one JSON object.

The exit code is 1 if a stop was not clean, or if a run differs from the first run. With 20 or more signals, it is also
1 if some phase got no signal.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import collections
import json
import random
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

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_path
from efficient_attention.errors import RunError, require_at_least
from efficient_attention.processes.child_process import command_tied_to_parent
from scripts.stress.check_stopped_run import StoppedProcess, newest_saved_step, stop_faults
from scripts.stress.compare_resumed_run import folder_differences
from scripts.stress.signal_moments import (
    NAMED,
    MomentQueue,
    PhaseSpan,
    SignalMoment,
    phase_logging_environment,
    phase_spans,
    random_moments,
    read_phase_events,
    wait_for_moment,
)

ROOT = Path(__file__).resolve().parents[2]
STOPS_EACH = (3, 7)  # minimum and maximum number of stops per run
ENOUGH = 20  # with at least this many signals, the script fails if some phase got no signal
HANGING_SECONDS = 900.0  # a process that has not ended this many seconds after the signal is killed
FIELDS = {
    'data.vocab_size': 300,
    'data.length': 64,
    'data.max_masked': 10,
    'model.width': 32,
    'model.heads': 2,
    'model.layers': 1,
    'train.steps': 60,
    'optimizer.warmup_steps': 10,
    'train.batch_size': 8,
    'train.log_every_steps': 10,
    'eval.every_steps': 20,
    'eval.batch_size': 8,
    'checkpoint.every_steps': 10,
    'checkpoint.keep': 1,  # only the last checkpoint can be compared, because a stop saves additional steps
}


class StopResult(NamedTuple):
    """How a training process ended after it got a stop signal."""

    name: str  # name of the signal, such as SIGTERM
    phase: str  # phase of the process when the signal came
    seconds: float  # seconds from the signal to the end of the process
    beyond: float  # seconds from the end of the interrupted step, evaluation batch or save to the end of the process
    code: int
    faults: list[str]
    said: str  # last line of standard error


def main() -> None:
    """Reads the flags, stops many runs, and prints a line per stop and a summary as one JSON object."""
    options = flags.FlagValues()
    define_path('folder', 'Folder of the runs; its content is deleted.', Path('cache/stops'), options)
    flags.DEFINE_integer('stops', 50, 'Number of signals to send.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Seed of the moments and signals.', flag_values=options)
    parse_flags(sys.argv, options=options)
    require_at_least(1, '--stops', options.stops)
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / 'docs', folder / 'docs')  # runs train on a copy of docs/, because docs/ may change
    unbroken = measure_uninterrupted_run(folder)
    seconds = options.stops * (0.8 + 1 / statistics.mean(STOPS_EACH)) * (unbroken[-1].end - unbroken[0].start)
    print(f'{options.stops} stops take about {seconds / 60:.1f} minutes', flush=True)
    stops, found = stop_and_resume_runs(folder, options.stops, options.seed, unbroken)
    result = summary(stops, found, unbroken)
    print(json.dumps(result))
    if result['not_clean'] or result['differences']:
        raise RunError(
            f'{len(result["not_clean"])} stop(s) were not clean, {len(result["differences"])} difference(s) were found'
        )
    if result['not_hit'] and len(stops) >= ENOUGH:
        raise RunError(f'no stop hit: {", ".join(result["not_hit"])}')


def training_command(folder: Path) -> list[str]:
    """Returns the command of a small training run whose workdir and corpus cache are in the given folder."""
    fields = FIELDS | {'data.source': f'text:{folder.parent}/docs/*.md#paragraphs', 'data.cache': folder / 'cache'}
    words = [f'--config.{name}={value}' for name, value in fields.items()]
    return command_tied_to_parent(
        [sys.executable, 'train.py', '--config=configs/quickstart.py', f'--workdir={folder / "run"}', *words]
    )


def run_environment(noted: Path) -> dict[str, str]:
    """Returns the environment variables of the runs: they use only the CPU, and log their phases into a file."""
    return phase_logging_environment(noted) | {'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}


def measure_uninterrupted_run(folder: Path) -> list[PhaseSpan]:
    """Runs the training without a stop, in `folder`/unbroken; returns its phases and how long each takes."""
    start = time.monotonic()
    run_to_end(folder, 'unbroken')
    return phase_spans(read_phase_events(folder / 'phases'), start, time.monotonic())


def run_to_end(folder: Path, name: str) -> None:
    """Starts or resumes a training run, and waits until it is finished; raises RunError if it fails."""
    words, noted = training_command(folder / name), run_environment(folder / 'phases')
    done = subprocess.run(words, cwd=ROOT, env=noted, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f'the {name} run ended with {done.returncode}: {"; ".join(done.stderr.splitlines()[-3:])}')


def stop_and_resume_runs(
    folder: Path, count: int, seed: int, unbroken: Sequence[PhaseSpan]
) -> tuple[list[StopResult], list[list[str]]]:
    """Stops and resumes runs until `count` stops are measured.

    Returns:
        All stops, and for each finished run its differences from the run without stops.
    """
    rng, numbers = random.Random(seed), random.Random(f'signals {seed}')
    plan = MomentQueue(random_moments(rng, unbroken), unbroken)
    stops: list[StopResult] = []
    found: list[list[str]] = []
    while len(stops) < count:
        planned = plan.take_moments(min(rng.randint(*STOPS_EACH), count - len(stops)))
        for place, moment in enumerate(planned):
            stop = stop_once(folder, numbers.choice((signal.SIGINT, signal.SIGTERM)), moment)
            if stop is not None:
                stops.append(stop)
                print(format_stop(stop), flush=True)
            if stop is None or stop.code == 0:
                plan.return_moments(planned[place + 1 :])
                break
        run_to_end(folder, 'stopped')
        found.append(folder_differences(folder / 'stopped' / 'run', folder / 'unbroken' / 'run', was_stopped=True))
        shutil.rmtree(folder / 'stopped')
    return stops, found


def stop_once(folder: Path, number: signal.Signals, moment: SignalMoment) -> StopResult | None:
    """Starts or resumes a run, sends a stop signal at a given moment, and returns how the run ended.

    Returns None if the run ended before the moment.
    """
    run, said = folder / 'stopped' / 'run', folder / 'stderr'
    before = newest_saved_step(run)
    with said.open('wb') as stream:
        words, noted, start = training_command(folder / 'stopped'), run_environment(folder / 'phases'), time.monotonic()
        process = subprocess.Popen(words, cwd=ROOT, env=noted, stdout=subprocess.DEVNULL, stderr=stream)
        if not wait_for_moment(moment, folder / 'phases', start, lambda: process.poll() is None):
            return None
        sent = time.monotonic()
        process.send_signal(number)
        try:
            process.wait(HANGING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    end, lines = time.monotonic(), said.read_text(encoding='utf-8', errors='replace').splitlines()
    events, after = read_phase_events(folder / 'phases'), newest_saved_step(run)
    ending = StoppedProcess(number, start, sent, end, process.returncode, lines, events, before, after)
    found = stop_faults(ending, run, FIELDS['train.steps'])
    last = lines[-1] if lines else ''
    return StopResult(number.name, ending.phase, end - sent, ending.overtime_seconds, ending.code, found, last)


def format_stop(stop: StopResult) -> str:
    """Returns the line that this script prints about one stop."""
    verdict = '; '.join(stop.faults) or 'clean'
    return f'{stop.name:>7} in {stop.phase:<11} code {stop.code:>4}, {stop.seconds:5.2f} s: {verdict}; {stop.said[:60]}'


def summary(
    stops: Sequence[StopResult], found: Sequence[Sequence[str]], unbroken: Sequence[PhaseSpan]
) -> dict[str, Any]:
    """Returns a summary: stops per phase, phases without stops, faults, and differences of finished runs."""
    hit = {phase: [stop for stop in stops if stop.phase == phase] for phase in (span.phase for span in unbroken)}
    return {
        'stops': len(stops),
        'phases': {phase: count_exit_codes(of_phase) for phase, of_phase in hit.items() if of_phase},
        'not_hit': [phase for phase, of_phase in hit.items() if phase in NAMED and not of_phase],
        'all': count_exit_codes(stops),
        'not_clean': [stop._asdict() for stop in stops if stop.faults],
        'runs_finished': len(found),
        'runs_equal_to_the_unbroken': sum(not lines for lines in found),
        'differences': [line for lines in found for line in lines],
    }


def count_exit_codes(stops: Sequence[StopResult]) -> dict[str, Any]:
    """Returns the number of stops per exit code, and the median and longest seconds until the process ended."""
    return {
        'stops': len(stops),
        'codes': dict(sorted(collections.Counter(stop.code for stop in stops).items())),
        'seconds_median': round(statistics.median(stop.seconds for stop in stops), 2),
        'seconds_longest': round(max(stop.seconds for stop in stops), 2),
        'beyond_longest': round(max(stop.beyond for stop in stops), 2),
    }


if __name__ == '__main__':
    run_command(main)
