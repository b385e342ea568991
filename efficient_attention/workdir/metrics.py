"""A run's numbers: `metrics.jsonl`, one JSON object a line, and TensorBoard events in `tensorboard/`.

A line is {"step": 10, "split": "train", "loss": 2.5, ...}: the numbers after `step` updates. A run that was killed and
resumed has each (step, split) once, as if it had never been killed. Numbers that are not finite are written as the
strings "nan", "inf" and "-inf", so that every line is JSON; `read_metrics` turns them back.

The file lies beside the run: it may be cut, edited or lost, and nothing that a run does depends on it. What can be read
is kept. Checkpoints have what a run that goes on needs (`evaluations.py`).
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

from efficient_attention.config.json_text import parse_json
from efficient_attention.errors import InputError, RunError, is_whole_number, show_error
from efficient_attention.whole_files import cannot_be_written, write_atomically
from efficient_attention.workdir.events import EventsFile

FILE_NAME = 'metrics.jsonl'
EVENTS_FOLDER = 'tensorboard'
SPEEDS = frozenset({'steps_per_second', 'tokens_per_second', 'waiting_share', 'flops_utilisation'})  # what a clock says
LOG = logging.getLogger(__name__)
LARGEST_STEP, LARGEST_METRIC = 2**53, 1e100  # above those of any run; charts cannot be drawn to any number
WEIGHTS_KEPT = 'weights_kept'  # of a run that prunes: the share of the prunable weights that are left
STILL_PRUNING = 'still_pruning'  # 1 where that share is not the final one yet: such an evaluation is never the best
NOT_FINITE = ('nan', 'inf', '-inf')


def score_of(metrics: Mapping[str, float], name: str) -> float | None:
    """The metric by which a checkpoint may be the best; None where there is none, or more would still be pruned."""
    return None if metrics.get(STILL_PRUNING) else metrics.get(name)


class MetricsLog:
    """Appends metrics to the files of a workdir; does nothing in processes other than the first.

    Lines that cannot be written are kept for the next try, which is said once; closing raises if some are left. On
    opening, lines of steps beyond `start_step` are removed: a resumed run writes them again. So are lines that cannot
    be read, or come twice; `dropped` names them. Open it after the workdir is locked (`Checkpoints`).

    Args:
        workdir: folder of the run.
        start_step: updates that the restored state has made; 0 for a new run.

    Raises:
        RunError, InputError: the files cannot be written.
    """

    def __init__(self, workdir: Path, *, start_step: int = 0) -> None:
        self.workdir, self.start_step = workdir, start_step
        self._is_writer, self.lines = jax.process_index() == 0, 0  # lines of the file
        self.kept: list[dict[str, Any]] = []  # lines that were there
        self.dropped: list[str] = []
        self._hash = hashlib.sha256()  # of all lines
        if not self._is_writer:
            return
        workdir.mkdir(parents=True, exist_ok=True)
        path = workdir / FILE_NAME
        found, self.dropped = read_log(workdir)
        self.kept = kept = [line for line in found if line['step'] <= start_step]
        content = ''.join(map(_line, kept))
        write_atomically(path, content)
        self._hash.update(content.encode())
        self.lines = len(kept)
        # Only lines of this step can come again: what is measured right after a restart was perhaps measured before.
        self._written = {(line['step'], line['split']) for line in kept if line['step'] == start_step}
        self._path, self._unwritten, self._is_failing = path, b'', False
        self._first_unwritten = math.inf  # the first step of a line in `_unwritten`
        try:
            self._file = path.open('ab', buffering=0)
        except OSError as error:
            raise cannot_be_written(path, error) from None
        self._events = EventsFile(workdir / EVENTS_FOLDER, first_step=start_step + 1)

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Appends one line and flushes it; a (step, split) that was written before the restart is left as it is.

        Args:
            step: updates made.
            split: 'train', 'held_out', ...
            metrics: {name: number, or JAX or NumPy scalar}.
        """
        if not self._is_writer or (step, split) in self._written:
            return
        numbers = {name: _number(value) for name, value in metrics.items()}
        self._first_unwritten = min(self._first_unwritten, step)
        self.lines += 1
        line = _line({'step': step, 'split': split, **numbers}).encode()
        self._hash.update(line)
        self._unwritten += line
        self._write_out()
        # tensorboardX would print a warning for each number that is not finite
        self._events.add(step, {f'{split}/{name}': one for name, one in numbers.items() if math.isfinite(one)})

    def digest(self) -> str:
        """The SHA-256 of all lines so far."""
        return self._hash.hexdigest()

    def check_written(self, step: int) -> None:
        """Raises RunError if lines of steps up to this one are not written; any thread may call it.

        A run that goes on from this step would not write them again.
        """
        if self._is_writer and self._first_unwritten <= step:
            raise RunError(f'{self._path}: lines up to this step are not written')

    def close(self) -> None:
        """Closes both files; raises RunError if lines are not written."""
        if not self._is_writer or self._file.closed:
            return
        self._write_out()
        self._file.close()
        self._events.close()
        if self._unwritten:
            lost = self._unwritten.count(b'\n')
            raise RunError(f'{self._path}: the last {lost} line(s) are not written; the same command goes on')

    def _write_out(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            self._first_unwritten, self._is_failing = math.inf, False
        except OSError as error:
            if not self._is_failing:
                LOG.error('%s; its lines are kept for the next try', cannot_be_written(self._path, error))
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


class Log(NamedTuple):
    """What can be read of a run's `metrics.jsonl`."""

    lines: list[dict[str, Any]]  # with step, split and numbers
    dropped: list[str]  # the lines that are left out, each with its number and why


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl` as dicts with step, split and numbers; [] where there is none."""
    return read_log(workdir).lines


def read_log(workdir: Path) -> Log:
    """The lines of a run's `metrics.jsonl` that can be read, each step of a split once, and what is left out.

    A last line without its end, left by a process that was killed while it wrote, is left out without a word.

    Raises:
        InputError: the file is a folder, or cannot be read.
    """
    path = workdir / FILE_NAME
    if not path.exists():
        return Log([], [])
    found: dict[tuple[int, str], dict[str, Any]] = {}
    dropped: list[str] = []
    try:
        *lines, _unfinished = path.read_bytes().split(b'\n')
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    for number, text in enumerate(lines, 1):
        try:
            line = checked_line(_parsed(text))
            place = line['step'], line['split']
            if place in found:
                raise ValueError(f'step {place[0]} of split {place[1]!r} comes twice')
            found[place] = line
        except ValueError as error:
            dropped.append(f'line {number}: {error}')
    return Log(list(found.values()), dropped)


def _parsed(text: bytes) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        raise ValueError('not JSON') from None


def dropped_note(workdir: Path, dropped: Sequence[str]) -> list[str]:
    """A message on the lines of `metrics.jsonl` that are left out; none if all can be read."""
    more = f', and {len(dropped) - 1} more' if len(dropped) > 1 else ''
    return [f'{workdir / FILE_NAME}: what cannot be used is left out: {dropped[0]}{more}'] if dropped else []


def changed_lines_note(workdir: Path, lines: Sequence[Mapping[str, Any]], expected: str) -> list[str]:
    """A line if the SHA-256 of these lines of the metrics is not `expected`; else none."""
    if hashlib.sha256(''.join(map(_line, lines)).encode()).hexdigest() == expected:
        return []
    return [f'{workdir / FILE_NAME}: its first {len(lines)} lines are not what the run wrote; it goes on without them']


def checked_line(found: Any) -> dict[str, Any]:
    """Checks a parsed line of metrics and turns words such as 'nan' back into numbers; raises ValueError."""
    if not (isinstance(found, dict) and {'step', 'split'} <= found.keys()):
        raise ValueError('not a JSON object with step and split')
    step, split = found['step'], found['split']
    if not (is_whole_number(step) and 0 <= step <= LARGEST_STEP and isinstance(split, str)):
        raise ValueError(f'step {step!r} of split {split!r} is none')
    named = {name: value for name, value in found.items() if name not in ('step', 'split')}
    numbers = {name: float(value) if value in NOT_FINITE else value for name, value in named.items()}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f'{name} is {json.dumps(value)[:40]}, which is no number')
        if LARGEST_METRIC < abs(value) < math.inf:
            raise ValueError(f'{name} is a number beyond {LARGEST_METRIC:g}')
    return {'step': step, 'split': split, **numbers}


def line_of(step: int, split: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics for JSON: Python numbers, and words such as 'nan' for numbers that are not finite."""
    numbers = {name: _number(value) for name, value in metrics.items()}
    return shown({'step': step, 'split': split, **numbers})


def _line(fields: Mapping[str, Any]) -> str:
    return json.dumps(shown(fields), allow_nan=False) + '\n'


def shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a line as JSON writes them: a word for each number that is not finite."""
    return {name: str(value) if _is_not_finite(value) else value for name, value in fields.items()}


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _number(value: Any) -> int | float:
    number = np.asarray(value).item()
    return number if isinstance(number, int) and not isinstance(number, bool) else float(number)
