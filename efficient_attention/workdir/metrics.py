"""Logs a run's metrics to `metrics.jsonl`, with one JSON object per line, and sends them to the run's trackers.

A line is {"step": 10, "split": "train", "loss": 2.5, ...}: the numbers after `step` updates. In a run that was killed
and resumed, each (step, split) appears once, as in an unbroken run. Numbers that are not finite are written as the
strings "nan", "inf" and "-inf", so that every line is JSON. `read_metrics` turns them back into numbers.

The file may be cut, edited or lost without any effect on training. Readable lines are kept. Everything that a resumed
run needs is in its checkpoints (`stored_evaluations.py`).
"""

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from efficient_attention.atomic_files import write_atomically, write_failed_error
from efficient_attention.config.json_parsing import parse_json
from efficient_attention.errors import InputError, RunError, is_whole_number, show_error
from efficient_attention.workdir.trackers.all_trackers import Trackers

FILE_NAME = 'metrics.jsonl'
# These metrics are measured with a clock, so they differ between equal runs.
SPEEDS = frozenset({'steps_per_second', 'tokens_per_second', 'waiting_share', 'flops_utilisation'})
LOG = logging.getLogger(__name__)
# Larger steps or metrics count as damage: no run has them, and charts fail on them.
LARGEST_STEP, LARGEST_METRIC = 2**53, 1e100
WEIGHTS_KEPT = 'weights_kept'  # name of a metric of runs that prune: the share of prunable weights that are left
# name of a metric that is 1 while pruning continues; such an evaluation never counts as the best
STILL_PRUNING = 'still_pruning'
NOT_FINITE = ('nan', 'inf', '-inf')


def best_metric_value(metrics: Mapping[str, float], name: str) -> float | None:
    """Returns the metric that ranks checkpoints; None if the metric is missing or pruning has not finished."""
    return None if metrics.get(STILL_PRUNING) else metrics.get(name)


class MetricsLog:
    """Appends metrics to metrics.jsonl of a workdir, and sends them to `trackers`, in process 0 only.

    Lines that cannot be written are kept for the next attempt, with one error line for all; `close` raises if some are
    left. On opening, lines after `start_step` are removed, since a resumed run writes them again. Unreadable or
    repeated lines are removed too, and named in `dropped`. Open it after the workdir is locked (`CheckpointWriter`).

    Args:
        workdir: folder of the run.
        start_step: updates made before the restored state; 0 for a new run.

    Raises:
        RunError, InputError: the files cannot be written.
    """

    def __init__(self, workdir: Path, *, start_step: int = 0) -> None:
        self.workdir, self.start_step = workdir, start_step
        self.trackers = Trackers({}, LOG.warning)  # the trackers of the run; whoever opens the log sets them
        self._is_writer, self.lines = jax.process_index() == 0, 0  # `lines` is the number of lines in metrics.jsonl
        self.kept: list[dict[str, Any]] = []  # lines in metrics.jsonl from before this start of the run
        self.dropped: list[str] = []
        self._hash = hashlib.sha256()  # the SHA-256 of all lines in metrics.jsonl
        if not self._is_writer:
            return
        workdir.mkdir(parents=True, exist_ok=True)
        path = workdir / FILE_NAME
        found, self.dropped = parse_metrics_log(workdir)
        self.kept = kept = [line for line in found if line['step'] <= start_step]
        content = ''.join(map(_json_line, kept))
        write_atomically(path, content)
        self._hash.update(content.encode())
        self.lines = len(kept)
        # A metric of `start_step` may be measured again after a restart, although it is already in the file.
        self._written = {(line['step'], line['split']) for line in kept if line['step'] == start_step}
        self._path, self._unwritten, self._is_failing = path, b'', False
        self._first_unwritten = math.inf  # the lowest step among the lines in `_unwritten`
        try:
            self._file = path.open('ab', buffering=0)
        except OSError as error:
            raise write_failed_error(path, error) from None

    def write_metrics(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Appends one line of metrics to the file and flushes it. A line that the file already had when the run
        restarted is not repeated.

        Args:
            step: updates made.
            split: 'train', 'held_out', ...
            metrics: {name: number, or JAX or NumPy scalar}.
        """
        if not self._is_writer or (step, split) in self._written:
            return
        numbers = {name: _to_python_number(value) for name, value in metrics.items()}
        self._first_unwritten = min(self._first_unwritten, step)
        self.lines += 1
        line = _json_line({'step': step, 'split': split, **numbers}).encode()
        self._hash.update(line)
        self._unwritten += line
        self._write_pending_lines()
        self.trackers.log(step, split, numbers)

    def digest(self) -> str:
        """Returns the SHA-256 of all lines in the metrics file so far."""
        return self._hash.hexdigest()

    def check_lines_written(self, step: int) -> None:
        """Raises RunError if metrics of this step or of earlier steps are not written to the file yet. Any thread may
        call it.

        A run resumed from this step would not write these lines again.
        """
        if self._is_writer and self._first_unwritten <= step:
            raise RunError(f'{self._path}: lines up to this step are not written')

    def close(self) -> None:
        """Closes metrics.jsonl; raises RunError if lines of metrics could not be written."""
        if not self._is_writer or self._file.closed:
            return
        self._write_pending_lines()
        self._file.close()
        if self._unwritten:
            lost = self._unwritten.count(b'\n')
            raise RunError(f'{self._path}: the last {lost} line(s) are not written; the same command goes on')

    def _write_pending_lines(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            self._first_unwritten, self._is_failing = math.inf, False
        except OSError as error:
            if not self._is_failing:
                LOG.error('%s; its lines are kept for the next try', write_failed_error(self._path, error))
            self._is_failing = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, trace
        try:
            self.close()
        except RunError as failure:
            if error is None:
                raise
            show_error(failure)


class ParsedMetricsLog(NamedTuple):
    """The content of a run's `metrics.jsonl`, split into usable and unusable lines."""

    lines: list[dict[str, Any]]  # usable lines of metrics.jsonl, each with step, split and metrics
    dropped: list[str]  # unusable lines, each as a text with its line number and the reason


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Returns the usable lines of a run's `metrics.jsonl`, as dicts with step, split and metrics; [] if the file does
    not exist.
    """
    return parse_metrics_log(workdir).lines


def parse_metrics_log(workdir: Path) -> ParsedMetricsLog:
    """Returns the usable lines of a run's `metrics.jsonl`, with each (step, split) once, and descriptions of the
    unusable lines.

    An unfinished last line, left by a process killed while writing, is ignored silently.

    Raises:
        InputError: the file is a folder, or cannot be read.
    """
    path = workdir / FILE_NAME
    if not path.exists():
        return ParsedMetricsLog([], [])
    found: dict[tuple[int, str], dict[str, Any]] = {}
    dropped: list[str] = []
    try:
        *lines, _unfinished = path.read_bytes().split(b'\n')
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    for number, text in enumerate(lines, 1):
        try:
            line = check_metrics_line(_parse_json_line(text))
            place = line['step'], line['split']
            if place in found:
                raise ValueError(f'step {place[0]} of split {place[1]!r} comes twice')
            found[place] = line
        except ValueError as error:
            dropped.append(f'line {number}: {error}')
    return ParsedMetricsLog(list(found.values()), dropped)


def _parse_json_line(text: bytes) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        raise ValueError('not JSON') from None


def unreadable_lines_note(workdir: Path, dropped: Sequence[str]) -> list[str]:
    """Returns a list with one note if `metrics.jsonl` has unusable lines; otherwise []."""
    more = f', and {len(dropped) - 1} more' if len(dropped) > 1 else ''
    return [f'{workdir / FILE_NAME}: unusable lines are ignored: {dropped[0]}{more}'] if dropped else []


def changed_lines_note(workdir: Path, lines: Sequence[Mapping[str, Any]], expected: str) -> list[str]:
    """Returns a list with one note if these lines of metrics were changed, so that they do not have the expected
    SHA-256; otherwise [].
    """
    if hashlib.sha256(''.join(map(_json_line, lines)).encode()).hexdigest() == expected:
        return []
    return [f'{workdir / FILE_NAME}: its first {len(lines)} lines are not what the run wrote; it goes on without them']


def check_metrics_line(found: Any) -> dict[str, Any]:
    """Returns one parsed line of metrics.jsonl with strings such as 'nan' turned back into numbers; raises ValueError
    if the line is invalid.
    """
    if not (isinstance(found, dict) and {'step', 'split'} <= found.keys()):
        raise ValueError('not a JSON object with step and split')
    step, split = found['step'], found['split']
    if not (is_whole_number(step) and 0 <= step <= LARGEST_STEP and isinstance(split, str)):
        raise ValueError(f'step {step!r} of split {split!r} is not a valid step')
    named = {name: value for name, value in found.items() if name not in ('step', 'split')}
    numbers = {name: float(value) if value in NOT_FINITE else value for name, value in named.items()}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f'{name} is {json.dumps(value)[:40]}, which is no number')
        if LARGEST_METRIC < abs(value) < math.inf:
            raise ValueError(f'{name} is a number beyond {LARGEST_METRIC:g}')
    return {'step': step, 'split': split, **numbers}


def metrics_line(step: int, split: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one line of metrics as a dict for JSON. Numbers that are not finite become strings such as 'nan'."""
    numbers = {name: _to_python_number(value) for name, value in metrics.items()}
    return nonfinite_as_text({'step': step, 'split': split, **numbers})


def _json_line(fields: Mapping[str, Any]) -> str:
    return json.dumps(nonfinite_as_text(fields), allow_nan=False) + '\n'


def nonfinite_as_text(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a metrics line, where each number that is not finite is replaced by a string such
    as 'nan'.
    """
    return {name: str(value) if _is_not_finite(value) else value for name, value in fields.items()}


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _to_python_number(value: Any) -> int | float:
    number = np.asarray(value).item()
    return number if isinstance(number, int) and not isinstance(number, bool) else float(number)
