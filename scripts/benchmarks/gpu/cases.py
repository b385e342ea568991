"""Runs named cases of a benchmark on one device within a time budget, and writes each result at once.

The benchmark has several parts, such as `attention` and `decoding`. A part is a list of `Case`s, and its results are
one JSON file, the report. If a case fails, the report contains the reason. Before a case starts, the report calls it
unfinished. So the next call knows which case killed the process, and tries this case again only after all new cases.

A call goes through all parts once per stage (`STAGES`), so a short call has the most valuable cases of every part.
"""

import dataclasses
import datetime
import hashlib
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
FIELDS = ('part', 'code', 'is_dry_run')
MACHINE = ('device', 'count', 'jax', 'jaxlib')
# The stages of a call: the first cases of all parts, then the other new cases, then the unfinished cases.
STAGES = ('first', 'new', 'again')
MEASURED_CODE = ('efficient_attention', 'scripts/benchmarks/gpu', 'scripts/benchmarks/peers')


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

    A peer is a side of another library. `measure` returns the fields of the result, or raises an error. A call measures
    the cases with `is_first` of all parts before any other case.
    """

    group: str
    side: str
    measure: Callable[[], dict[str, Any]]
    is_peer: bool = False
    is_first: bool = False

    @property
    def name(self) -> str:
        """The name of the case in the report."""
        return f'{self.group}: {self.side}'


def run_parts(parts: dict[Path, tuple[dict[str, Any], Sequence[Case]]], stop: float) -> int:
    """Runs the missing cases of all parts, stage by stage, and returns how many cases are left.

    Args:
        parts: for each part, its file, the head of its report and its cases.
        stop: the time of `time.monotonic` after which no case starts.

    Raises:
        InputError: other code or another machine wrote a file, its sizes differ, or it cannot be read.
        RunError: the device does not answer any more.
    """
    for path, (head, _) in parts.items():
        read_report(path, head)  # This refuses a file before any case runs.
    left = 0
    for stage in STAGES:
        left = sum(run_part(path, head, cases, stop, stage) for path, (head, cases) in parts.items())
    return left


def run_part(path: Path, head: dict[str, Any], cases: Sequence[Case], stop: float, stage: str) -> int:
    """Runs the cases of a part that belong to a stage, and returns how many cases of the part are left.

    The file `path` is rewritten before and after every case. The arguments and errors are those of `run_parts`.
    """
    report = read_report(path, head)
    done = report['cases']
    waiting = [case for case in cases if is_in_stage(case, done, stage)]
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
    return sum(case.name not in done or done[case.name].get('reason') == UNFINISHED for case in cases)


def is_in_stage(case: Case, done: dict[str, Any], stage: str) -> bool:
    """Returns whether a stage runs a case, given the results by name so far."""
    if stage == 'again':
        return done.get(case.name, {}).get('reason') == UNFINISHED
    return case.name not in done and (case.is_first or stage == 'new')


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
    words += ['WRONG'] if result.get('is_wrong') else []
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
        InputError: git does not know the commit. A published result names it.
    """
    commit = output_of(['git', '-C', str(root), 'rev-parse', '--short=12', 'HEAD'])
    if not commit:
        raise InputError(f'{root}: git does not tell the commit of this copy; name it with --commit')
    changed = output_of(['git', '-C', str(root), 'status', '--porcelain', '--untracked-files=no'])
    return f'{commit}{"+" if changed else ""}'


def code_digest(root: Path) -> str:
    """Returns a digest of the measured code: the Python files of the package and of this benchmark.

    Results of two commits with the same measured code belong to one file.
    """
    digest = hashlib.sha256()
    files = [path for folder in MEASURED_CODE for path in (root / folder).rglob('*.py')]
    for path in sorted([*files, *(root / 'scripts' / 'benchmarks').glob('plain_nnx.py')]):
        digest.update(f'{path.relative_to(root).as_posix()}\n'.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def output_of(command: list[str]) -> str:
    """Returns the standard output of a command; '' if there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return done.stdout.strip() if done.returncode == 0 else ''


def make_head(part: str, machine: dict[str, Any], commit: str, code: str, settings: Settings) -> dict[str, Any]:
    """Returns the fields of a report, without its cases; `code` is the result of `code_digest`."""
    today = datetime.date.today().isoformat()
    about = {'commit': commit, 'code': code, 'date': today}
    return {'part': part, 'machine': machine, **about, 'is_dry_run': settings.is_dry}


def read_report(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """Returns the report of earlier calls with the commit and date of this call; if there is none, a report without
    cases.

    Raises:
        InputError: other code or another machine wrote the file, its sizes differ, or it is no report of this part.
    """
    if not path.exists():
        return head | {'cases': {}}
    try:
        report = read_json_file(path)
        old = [report[name] for name in FIELDS]
        old += [report['machine'][name] for name in MACHINE]
        results = {name: dict(result) for name, result in report['cases'].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f'{path}: not a report of this script ({one_line(error)}); name another --output') from None
    new = [head[name] for name in FIELDS] + [head['machine'][name] for name in MACHINE]
    names = (*FIELDS, *MACHINE)
    pairs = zip(names, old, new, strict=True)
    changed = [f'{name} {before!r} instead of {now!r}' for name, before, now in pairs if before != now]
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
