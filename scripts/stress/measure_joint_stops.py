"""Sends stop signals to small runs of several processes at random moments, and checks how all processes end.

    python scripts/stress/measure_joint_stops.py --folder cache/joint_stops [--stops 50] [--seed 0] [--phases save]

The first run is not stopped. Then new runs of the same command start. In each, one process or all processes get SIGTERM
or SIGINT at a random moment of a phase. A stop is clean if all processes end in time with the exit codes of
docs/reliability.md, and the step reported as saved is saved. The seed determines moments, signals and processes. The
last line of output is one JSON object; the exit code is 1 if a stop was not clean.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_path
from efficient_attention.errors import ExitCode, InputError, RunError, require_at_least
from efficient_attention.processes.child_process import command_tied_to_parent
from efficient_attention.processes.coordinator_relay import LOOPBACK
from efficient_attention.processes.join_hosts import find_free_port
from efficient_attention.processes.signal_thread import stop_message
from scripts.stress.check_stopped_run import BEFORE_THE_FIRST_STEP, PROGRESS, SAVED, newest_saved_step
from scripts.stress.signal_moments import (
    NAMED,
    SignalMoment,
    phase_at,
    phase_logging_environment,
    phase_spans,
    random_moments,
    read_phase_events,
    wait_for_moment,
)

ROOT = Path(__file__).resolve().parents[2]
HANGING_SECONDS = 90.0  # seconds after the signal within which all processes must end
LAST_STEP = 30
PHASES = NAMED[1:9]  # the phases after the imports; during the imports, the processes are not connected
JOIN_SECONDS = 60.0
# This pattern matches error lines about another process that a signal ended before there was anything to save.
OF_ANOTHER = re.compile(
    r'error: (process \d+ \(host .*\) (failed: stopped by |has died; )|process 0 (at|did not answer at) |\d+ of \d+ )'
)
CONFIG = 'configs/lm/transformer_xl.py'
FIELDS = {
    'data.length': 16,
    'data.test': 0.0,
    'data.held_out': 0.02,
    'model.width': 16,
    'model.heads': 2,
    'model.layers': 1,
    'model.memory_length': 16,
    'eval.context': 16,
    'eval.memory_length': 16,
    'train.steps': LAST_STEP,
    'optimizer.warmup_steps': 3,
    'train.batch_size': 4,
    'train.log_every_steps': 1,
    'eval.every_steps': 10,
    'eval.batch_size': 4,
    'checkpoint.every_steps': 5,
}


class StopResult(NamedTuple):
    """How the processes of a run ended after some of them got a stop signal."""

    name: str  # name of the signal, such as SIGTERM
    victims: list[int]  # numbers of the processes that got the signal
    phase: str  # phase of the first process in `victims` when the signal came
    seconds: float  # seconds from the signal to the end of the last process
    codes: list[int | None]  # exit code of each process; None if the process did not end and was killed
    faults: list[str]


def main() -> None:
    """Reads the flags, stops many runs, and prints a line per stop and a summary as one JSON object."""
    options = flags.FlagValues()
    define_path('folder', 'Folder of the runs; its content is deleted.', Path('cache/joint_stops'), options)
    flags.DEFINE_integer('stops', 50, 'Number of runs to stop.', flag_values=options)
    flags.DEFINE_integer('processes', 2, 'Processes per run.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Seed of the moments, signals and processes.', flag_values=options)
    flags.DEFINE_list('phases', list(PHASES), 'Phases in which the signals come.', flag_values=options)
    parse_flags(sys.argv, options=options)
    require_at_least(1, '--stops', options.stops)
    require_at_least(2, '--processes', options.processes)
    if unknown := set(options.phases) - set(NAMED):
        raise InputError(f'--phases: there is no {min(unknown)!r}; known: {", ".join(NAMED)}')
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / 'docs', folder / 'docs')  # runs train on a copy of docs/, because docs/ may change
    stops = stop_all_runs(folder, options)
    result = summary(stops)
    print(json.dumps(result))
    if result['not_clean']:
        raise RunError(f'{len(result["not_clean"])} of {len(stops)} stop(s) were not clean')


def stop_all_runs(folder: Path, options: Any) -> list[StopResult]:
    """Stops as many runs as --stops says, prints a line per stop, and returns how the runs ended.

    A run that ends before its moment does not count.
    """
    rng, count = random.Random(options.seed), options.processes
    start = time.monotonic()
    unbroken = launch_processes(folder, 'unbroken', count)
    for process in unbroken:
        process.wait()
    if any(process.returncode for process in unbroken):
        raise RunError(f'the run without a stop failed: {stderr_lines(folder, 0)[-1:]}')
    drawn = random_moments(
        rng, phase_spans(read_phase_events(folder / 'phases-0'), start, time.monotonic()), options.phases
    )
    stops: list[StopResult] = []
    while len(stops) < options.stops:
        victims = rng.choice([[rng.randrange(count)], list(range(count))])
        stop = stop_once(folder, rng.choice((signal.SIGINT, signal.SIGTERM)), victims, next(drawn), count)
        if stop is not None:
            stops.append(stop)
            print(format_joint_stop(stop), flush=True)
    return stops


def launch_processes(folder: Path, name: str, count: int) -> list[subprocess.Popen]:
    """Starts all processes of a new run; each process writes its phases, output and errors into separate files."""
    shutil.rmtree(folder / name, ignore_errors=True)
    fields = FIELDS | {'data.source': f'text:{folder}/docs/*.md#paragraphs', 'data.cache': folder / name / 'cache'}
    words = [f'--config.{field}={value}' for field, value in fields.items()]
    place = ['--distributed', f'--coordinator={LOOPBACK}:{find_free_port(LOOPBACK)}', f'--process_count={count}']
    place.append(f'--join_timeout={JOIN_SECONDS}')
    words = ['train.py', f'--config={CONFIG}', f'--workdir={folder / name / "run"}', *words, *place]
    begun = []
    for number in range(count):
        command = command_tied_to_parent([sys.executable, *words, f'--process_id={number}'])
        settings = {'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': '', 'XLA_FLAGS': ''}
        settings |= {'JAX_COMPILATION_CACHE_DIR': str(folder / 'programs')}
        settings |= {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0', 'PYTHONPATH': os.environ.get('PYTHONPATH', '')}
        with (folder / f'stderr-{number}').open('wb') as errors, (folder / f'stdout-{number}').open('wb') as output:
            environment = phase_logging_environment(folder / f'phases-{number}') | settings
            begun.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=errors))
    return begun


def stop_once(
    folder: Path, number: signal.Signals, victims: list[int], moment: SignalMoment, count: int
) -> StopResult | None:
    """Starts a run and sends a stop signal at a given moment; returns how the run ended.

    Returns None if the run ended before the moment.
    """
    start = time.monotonic()
    processes = launch_processes(folder, 'stopped', count)
    first = processes[victims[0]]
    if not wait_for_moment(moment, folder / f'phases-{victims[0]}', start, lambda: first.poll() is None):
        wait_or_kill_all(processes, 0.0)
        return None
    sent = time.monotonic()
    for victim in victims:
        processes[victim].send_signal(number)
    codes = wait_or_kill_all(processes, HANGING_SECONDS)
    seconds = time.monotonic() - sent
    phase = phase_at(read_phase_events(folder / f'phases-{victims[0]}'), sent)
    found = stop_faults(folder, number, victims, phase, codes)
    return StopResult(number.name, victims, phase, seconds, codes, found)


def wait_or_kill_all(processes: Sequence[subprocess.Popen], seconds: float) -> list[int | None]:
    """Waits for all processes, and kills those that do not end in time. Returns the exit code of each process, None for
    a killed process.
    """
    latest = time.monotonic() + seconds
    codes: list[int | None] = []
    for process in processes:
        try:
            codes.append(process.wait(max(0.0, latest - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(None)
    for process in processes:
        process.kill()
        process.wait()
    return codes


def stderr_lines(folder: Path, number: int) -> list[str]:
    """Returns the lines that a process of the run has written to standard error."""
    return (folder / f'stderr-{number}').read_text(encoding='utf-8', errors='replace').splitlines()


def stop_faults(
    folder: Path, number: signal.Signals, victims: Sequence[int], phase: str, codes: Sequence[int | None]
) -> list[str]:
    """Returns how the end of a stopped run deviates from the documented behaviour; [] for a clean stop."""
    found = [f'process {place} did not end' for place, code in enumerate(codes) if code is None]
    nothing = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
    alone = [(nothing, ExitCode.WATCHDOG) if place in victims else (ExitCode.WATCHDOG,) for place in range(len(codes))]
    ends_alone = nothing in codes and all(code in allowed for code, allowed in zip(codes, alone, strict=True))
    if set(codes) == {ExitCode.STOPPED}:
        found += last_save_faults(folder)
    elif set(codes) == {ExitCode.DONE}:
        if newest_saved_step(folder / 'stopped' / 'run') != LAST_STEP:
            found.append(f'exit code 0, and step {LAST_STEP} is not saved')
    elif not (ends_alone and phase in BEFORE_THE_FIRST_STEP):
        found.append(f'exit codes {list(codes)}')
    for place in range(len(codes)):
        lines = [line for line in stderr_lines(folder, place) if not (PROGRESS.match(line) or SAVED.fullmatch(line))]
        odd = [line for line in lines if line != stop_message(number) and not OF_ANOTHER.match(line)]
        found += [f'process {place} said: {line[:200]}' for line in odd[:3]]
        if (folder / f'stdout-{place}').stat().st_size:
            found.append(f'process {place} printed something')
    return found


def last_save_faults(folder: Path) -> list[str]:
    """Returns a list with one fault if the step that process 0 reports as saved is not the newest saved step; otherwise
    [].
    """
    last = (stderr_lines(folder, 0) or [''])[-1]
    match, saved = SAVED.fullmatch(last), newest_saved_step(folder / 'stopped' / 'run')
    return [] if match and int(match[1]) == saved else [f'step {saved} is saved, and the last line is: {last[:200]}']


def format_joint_stop(stop: StopResult) -> str:
    """Returns the line that this script prints about one stopped run."""
    verdict = '; '.join(stop.faults) or 'clean'
    return f'{stop.name:>7} to {stop.victims} in {stop.phase:<11} codes {stop.codes}, {stop.seconds:5.2f} s: {verdict}'


def summary(stops: Sequence[StopResult]) -> dict[str, Any]:
    """Returns a summary of all stops: counts, exit codes and longest seconds per phase, and the stops with faults."""
    phases = {}
    for phase in dict.fromkeys(stop.phase for stop in stops):
        of_phase = [stop for stop in stops if stop.phase == phase]
        codes = collections.Counter(str(sorted(map(str, stop.codes))) for stop in of_phase)
        longest = round(max(stop.seconds for stop in of_phase), 2)
        phases[phase] = {'stops': len(of_phase), 'codes': dict(codes), 'seconds_longest': longest}
    return {'stops': len(stops), 'phases': phases, 'not_clean': [stop._asdict() for stop in stops if stop.faults]}


if __name__ == '__main__':
    run_command(main)
