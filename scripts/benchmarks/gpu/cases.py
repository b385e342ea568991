"""Runs named cases of a benchmark on one device within a time budget, and writes each result at once.

The benchmark has several parts, such as `attention` and `decoding`. A part is a list of `Case`s, and its results are
one JSON file, the report. If a case fails, the report contains the reason. Before a case starts, the report calls it
unfinished. So the next call knows which case killed the process, and tries this case again only after all new cases.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, RunError, one_line
from efficient_attention.training.throughput import peak_flops

UNFINISHED = 'unfinished: the process ended during this case'
REASON_LETTERS = 240  # maximum length of a recorded reason
# Fields that must be equal for two calls to write into one file.
MACHINE = ('device', 'count', 'jax', 'jaxlib')


@dataclasses.dataclass(frozen=True)
class Settings:
    """How often a program is timed, and whether the sizes are tiny, for a test on a CPU.

    Each case has `repeats` measurements. A measurement repeats the call until about `seconds` have passed, at most
    `calls` times.
    """

    is_dry: bool
    repeats: int
    seconds: float
    calls: int


FULL = Settings(is_dry=False, repeats=5, seconds=0.03, calls=30)
DRY = Settings(is_dry=True, repeats=3, seconds=0.0, calls=1)


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement: an implementation (the side) of some work that the sides of one group share.

    A peer is a side of another library. `measure` returns the fields of the result, or raises an error.
    """

    group: str
    side: str
    measure: Callable[[], dict[str, Any]]
    is_peer: bool = False

    @property
    def name(self) -> str:
        """The name of the case in the report."""
        return f'{self.group}: {self.side}'


def run_part(path: Path, head: dict[str, Any], cases: Sequence[Case], stop: float) -> int:
    """Runs the missing cases of a part of the benchmark, and returns how many cases are left.

    The file `path` is rewritten before and after every case. No case starts after the time `stop` of `time.monotonic`.

    Raises:
        InputError: another commit or machine wrote the file, its sizes differ, or it cannot be read.
        RunError: the device does not answer any more.
    """
    report = read_report(path, head)
    done = report['cases']
    new = [case for case in cases if case.name not in done]
    again = [case for case in cases if done.get(case.name, {}).get('reason') == UNFINISHED]
    waiting = [*new, *again]
    while waiting and time.monotonic() < stop:
        case = waiting.pop(0)
        about = {'group': case.group, 'side': case.side, 'is_peer': case.is_peer}
        done[case.name] = about | {'reason': UNFINISHED}
        write_report(path, report)
        result = result_of(case)
        done[case.name] = about | result
        write_report(path, report)
        print(f'{report["part"]:>13}  {case.name:<58} {describe(result)}', flush=True)
        if 'reason' in result and not is_device_alive():
            raise RunError(f'the device does not answer after the case {case.name!r}; call the script again')
    return len(waiting)


def result_of(case: Case) -> dict[str, Any]:
    """Returns the result of a case, or the reason of its failure in one line."""
    try:
        return case.measure()
    except Exception as error:  # any error of a library is a result here, such as too little memory
        words = f'{type(error).__name__}: {one_line(error)}'
        return {'reason': words if len(words) <= REASON_LETTERS else f'{words[:REASON_LETTERS]} ...'}


def is_device_alive() -> bool:
    """Returns whether the device still computes; after some errors of CUDA, every later program fails."""
    try:
        return float(jnp.ones(2).sum()) == 2.0
    except Exception:  # the kind of the error depends on the library
        return False


def describe(result: dict[str, Any]) -> str:
    """Returns the main figures of a result as text."""
    if 'reason' in result:
        return result['reason'][:90]
    words = [f'{result["milliseconds"]:.3f} ms'] if 'milliseconds' in result else []
    words += [f'{result["tflops_per_second"]:.1f} TFLOP/s'] if 'tflops_per_second' in result else []
    words += [f'{result["tokens_per_second"]:,.0f} tokens/s'] if 'tokens_per_second' in result else []
    words += (
        [f'errors {result["output_error"]:.1e}, {result["gradient_error"]:.1e}'] if 'output_error' in result else []
    )
    return ', '.join(words)


# ---- These functions describe the machine, and read and write a part's file. ----


def describe_machine() -> dict[str, Any]:
    """Returns the kind, number and driver of the devices, and the versions of Python and the libraries."""
    device = jax.local_devices()[0]
    found = {'device': device.device_kind, 'count': jax.local_device_count(), 'platform': platform.platform()}
    found |= {'python': platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'flax')}
    for name in ('nvidia-cudnn-cu13', 'nvidia-cudnn-cu12', 'torch'):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    driver = output_of(['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'])
    return found | ({'driver': driver.splitlines()[0]} if driver else {})


def current_commit(root: Path) -> str:
    """Returns the commit of a working tree; a '+' means that tracked files differ.

    Raises:
        InputError: git does not know the commit. Files of two such copies could not be told apart.
    """
    commit = output_of(['git', '-C', str(root), 'rev-parse', '--short=12', 'HEAD'])
    if not commit:
        raise InputError(f'{root}: git does not tell the commit of this copy; name it with --commit')
    changed = output_of(['git', '-C', str(root), 'status', '--porcelain', '--untracked-files=no'])
    return f'{commit}{"+" if changed else ""}'


def output_of(command: list[str]) -> str:
    """Returns the standard output of a command; '' if there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return done.stdout.strip() if done.returncode == 0 else ''


def make_head(part: str, machine: dict[str, Any], commit: str, settings: Settings) -> dict[str, Any]:
    """Returns the fields of a report, without its cases."""
    today = datetime.date.today().isoformat()
    return {'part': part, 'machine': machine, 'commit': commit, 'date': today, 'is_dry_run': settings.is_dry}


def read_report(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """Returns the report of earlier calls with the date of this call; if there is none, a report without cases.

    Raises:
        InputError: another commit or machine wrote the file, its sizes differ, or it is no report of this part.
    """
    if not path.exists():
        return head | {'cases': {}}
    try:
        report = read_json_file(path)
        old = [report[name] for name in ('part', 'commit', 'is_dry_run')]
        old += [report['machine'][name] for name in MACHINE]
        results = {name: dict(result) for name, result in report['cases'].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f'{path}: not a report of this script ({one_line(error)}); name another --output') from None
    new = [head[name] for name in ('part', 'commit', 'is_dry_run')] + [head['machine'][name] for name in MACHINE]
    changed = [f'{before!r} instead of {now!r}' for before, now in zip(old, new, strict=True) if before != now]
    if changed:
        raise InputError(f'{path}: measured with {", ".join(changed)}; name another --output')
    return head | {'cases': results}


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Replaces the JSON file of one part of the benchmark by the given report."""
    write_atomically(path, json.dumps(report, indent=1) + '\n')


# ---- These functions measure a program. ----


def measure_program(
    function: Callable[..., Any], arguments: Sequence[Any], settings: Settings, flops: float | None = None
) -> dict[str, Any]:
    """Compiles a function for its arguments and returns the time, memory and speed of a call.

    Args:
        function: a function of JAX arrays.
        arguments: JAX arrays.
        settings: how often the function is timed.
        flops: floating-point operations of a call; None = not counted.
    """
    program, figures = compile_program(function, arguments)
    before = peak_bytes()
    figures |= time_calls(lambda: program(*arguments), jax.block_until_ready, settings)
    return figures | peak_since(before) | (speed(figures['milliseconds'], flops) if flops else {})


def compile_program(
    function: Callable[..., Any], arguments: Sequence[Any], donated: tuple[int, ...] = ()
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns a compiled function, and the seconds of its compilation and the bytes of its temporary memory."""
    start = time.perf_counter()
    program = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    return program, {'compile_seconds': seconds, 'temporary_bytes': program.memory_analysis().temp_size_in_bytes}


def time_calls(call: Callable[[], Any], wait: Callable[[Any], Any], settings: Settings) -> dict[str, Any]:
    """Returns the milliseconds of a call: the median and the range of several measurements.

    The first call is not timed. `wait` gets a call's result and returns when the device has computed it. A measurement
    queues its calls on the device without waiting in between, so their launch costs overlap with computation.
    """
    wait(call())
    start = time.perf_counter()
    wait(call())
    once = time.perf_counter() - start
    count = int(min(max(settings.seconds / max(once, 1e-6), 1), settings.calls))
    taken = []
    for _ in range(settings.repeats):
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        wait(result)
        taken.append(1e3 * (time.perf_counter() - start) / count)
    figures = {'milliseconds': statistics.median(taken), 'milliseconds_range': [min(taken), max(taken)]}
    return figures | {'repeats': settings.repeats, 'calls': count}


def speed(milliseconds: float, flops: float) -> dict[str, float]:
    """Returns the operations of a call, its TFLOP/s, and for a known device the share of its 16-bit peak."""
    rate = flops / milliseconds * 1e3
    peak = peak_flops(jax.local_devices()[0].device_kind)
    found = {'flops': flops, 'tflops_per_second': rate / 1e12}
    return found | ({'peak_share': rate / peak} if peak else {})


def tokens_per_second(figures: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Returns the median and the range of tokens/s of a call that processes `tokens` tokens."""
    rates = [1e3 * tokens / one for one in (figures['milliseconds'], *figures['milliseconds_range'][::-1])]
    return {'tokens_per_second': rates[0], 'tokens_per_second_range': rates[1:]}


def peak_bytes() -> int | None:
    """Returns the peak of this process's device memory so far, in bytes; None if the device does not report it."""
    return (jax.local_devices()[0].memory_stats() or {}).get('peak_bytes_in_use')


def peak_since(before: int | None) -> dict[str, int]:
    """Returns the peak of the device's memory if it rose above the earlier peak `before`, else {}.

    A call that stays below the earlier peak has no known peak.
    """
    now = peak_bytes()
    return {'peak_bytes': now} if now is not None and before is not None and now > before else {}
