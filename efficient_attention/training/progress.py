"""Shows the progress of a training run: a progress bar in a terminal, plain lines of text everywhere else.

Something changes at least every ten seconds, also while a checkpoint is read, during a compilation or an evaluation.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TextIO

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from efficient_attention.processes.peer_monitor import process_index_and_count

# Metrics shown next to the step, as (name, displayed name, format).
# `waiting for input` is a share of the time; `FLOPs` is the used share of the devices' peak FLOP/s.
# The most important metric comes first, because a narrow terminal cuts off the end.
COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ('loss', 'loss', lambda value: f'{value:.4f}'),
    ('tokens_per_second', 'tokens/s', lambda value: f'{value:,.0f}'),
    ('waiting_share', 'waiting for input', lambda value: f'{100 * value:.1f} %'),
    ('flops_utilisation', 'FLOPs', lambda value: f'{100 * value:.1f} %'),
)
QUIET_SECONDS = 10.0  # Plain text gets a line after this many seconds without one.
LOOK_SECONDS = 1.0  # time between two looks whether a line is due
WIDE = 100  # A terminal with at least this many columns shows a bar besides the numbers.


class ProgressDisplay(Protocol):
    """Interface of all progress displays of a training run: a bar, lines of text, or nothing."""

    def advance_display(self, step: int) -> None:
        """Tells the display that `step` updates are done. The call is cheap enough for every step."""

    def report_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Shows the training metrics that COLUMNS lists."""

    def exclude_seconds(self, seconds: float) -> None:
        """Leaves seconds, such as those of a compilation, out of the mean speed that gives the remaining time."""

    def print_line(self, text: str) -> None:
        """Prints a line of text that stays visible."""


@contextlib.contextmanager
def show_progress(
    total_steps: int,
    *,
    start_step: int = 0,
    stream: TextIO | None = None,
    activity: Callable[[], str] = lambda: 'training',
) -> Iterator[ProgressDisplay]:
    """Yields the progress display of a run: a bar in a terminal, plain lines elsewhere, and nothing in processes other
    than process 0.

    Args:
        total_steps: updates of the whole run.
        start_step: updates already made when this process began.
        stream: output stream; None = standard error.
        activity: returns what the run does now, in words. Another thread calls it.
    """
    stream = stream or sys.stderr
    if jax.process_index() > 0:
        yield SilentProgress()
    elif stream.isatty():
        bar = BarProgress(total_steps, start_step=start_step, console=Console(file=stream))
        with bar.display:
            yield bar
    else:
        lines = LineProgress(total_steps, start_step=start_step, stream=stream, activity=activity)
        with _called_regularly(lines.break_silence):
            yield lines


@contextlib.contextmanager
def show_long_activity(
    activity: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Prints a line every ten seconds until the `with` block ends, such as 'restoring step 500 for 10 s'.

    For work before the first step, when the run has no display yet. Processes other than process 0 print nothing.

    Args:
        activity: what the run does in the block, in words.
        stream: output stream; None = standard error.
        clock: returns the time in seconds.
    """
    begun = printed = clock()
    lines = stream or sys.stderr

    def break_silence() -> None:
        nonlocal printed
        if clock() - printed >= QUIET_SECONDS:
            printed = clock()
            lines.write(f'{activity} for {round(printed - begun)} s\n')
            lines.flush()

    if process_index_and_count()[0] > 0:
        yield
    else:
        with _called_regularly(break_silence):
            yield


@contextlib.contextmanager
def _called_regularly(function: Callable[[], None]) -> Iterator[None]:
    """Calls a function every `LOOK_SECONDS` in a thread until the `with` block ends."""
    is_over = threading.Event()

    def call_until_over() -> None:
        while not is_over.wait(LOOK_SECONDS):
            function()

    threading.Thread(target=call_until_over, name='progress', daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


class StepTimer:
    """Measures the mean seconds per training step since this process began, without the first step and without
    excluded seconds, such as those of a compilation.
    """

    def __init__(self, start_step: int, seconds: float) -> None:
        self._begun = self._start = (start_step, seconds)

    def record_step_time(self, step: int, seconds: float) -> None:
        """Notes when the first step finished, so that the mean excludes this step; later calls have no effect."""
        if self._begun == self._start and step > self._start[0]:
            self._begun = (step, seconds)

    def exclude_seconds(self, seconds: float) -> None:
        """Leaves seconds out of the mean."""
        # A later begin leaves as many seconds less to divide by the steps.
        self._start, self._begun = ((step, begun + seconds) for step, begun in (self._start, self._begun))

    def seconds_per_step(self, step: int, seconds: float) -> float:
        """Returns the mean seconds per step up to this step; the first step is included only if there is no other."""
        first, begun = self._begun if step > self._begun[0] else self._start
        return (seconds - begun) / max(step - first, 1)


class LineProgress:
    """Shows progress as plain text, one line per report: 'step 100/1000 loss 2.5000 tokens/s 12,345 ... 0:01:30
    left'.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        start_step: int,
        stream: TextIO,
        activity: Callable[[], str] = lambda: 'training',
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps, self._step = total_steps, start_step
        self._stream, self._lock = stream, threading.Lock()
        self._clock, self._activity = clock, activity
        self._speed = StepTimer(start_step, clock())
        self._printed = clock()  # time of the last line
        self._doing, self._doing_since = '', clock()  # the activity at the last look, and the time of its first look

    def advance_display(self, step: int) -> None:
        """Shows nothing, because one line for every step would be too many."""
        self._step = step
        self._speed.record_step_time(step, self._clock())

    def break_silence(self) -> None:
        """Prints the step and the activity if no line was printed for ten seconds. Any thread may call it."""
        now, doing = self._clock(), self._activity()
        if doing != self._doing:
            self._doing, self._doing_since = doing, now
        if now - self._printed >= QUIET_SECONDS:
            seconds = round(now - self._doing_since)
            self.print_line(f'step {self._step}/{self._total_steps}  {doing} for {seconds} s')

    def report_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Prints a line with the metrics and the remaining time, estimated from the mean speed."""
        remaining = format_duration(self._speed.seconds_per_step(step, self._clock()) * (self._total_steps - step))
        self.print_line('  '.join([f'step {step}/{self._total_steps}', *format_metrics(metrics), f'{remaining} left']))

    def exclude_seconds(self, seconds: float) -> None:
        """Leaves seconds out of the mean speed."""
        self._speed.exclude_seconds(seconds)

    def print_line(self, text: str) -> None:
        """Prints the line at once."""
        with self._lock:
            self._printed = self._clock()
            self._stream.write(f'{text}\n')
            self._stream.flush()


class BarProgress:
    """Shows progress as a bar that is redrawn in place; lines of `print_line` appear above the bar."""

    def __init__(self, total_steps: int, *, start_step: int, console: Console) -> None:
        self._remaining = _RemainingTimeColumn(start_step)
        others = len(f'| {total_steps}/{total_steps} 0:00:00 left ') + (9 if console.width >= WIDE else 0)
        self._room = console.width - others  # width of the metrics; Rich would shorten all columns alike
        self.display = Progress(
            SpinnerColumn('line'),  # It moves also while no step ends.
            *([BarColumn(bar_width=8)] if console.width >= WIDE else []),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            self._remaining,
            TextColumn('{task.fields[metrics]}', style='cyan', table_column=Column(no_wrap=True, overflow='ellipsis')),
            console=console,
            refresh_per_second=4,
        )
        self._task = self.display.add_task('training', total=total_steps, completed=start_step, metrics='')

    def advance_display(self, step: int) -> None:
        """Moves the progress bar to this step."""
        self.display.update(self._task, completed=step)

    def report_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Moves the progress bar, and shows the metrics next to it until the next report."""
        shown = format_metrics(metrics)
        while len(shown) > 1 and len('  '.join(shown)) > self._room:
            shown.pop()
        self.display.update(self._task, completed=step, metrics='  '.join(shown))

    def exclude_seconds(self, seconds: float) -> None:
        """Leaves seconds out of the mean speed."""
        self._remaining.speed.exclude_seconds(seconds)

    def print_line(self, text: str) -> None:
        """Prints the line above the progress bar."""
        self.display.console.print(text, markup=False, highlight=False)


class SilentProgress:
    """A progress display that shows nothing, for processes other than process 0."""

    def advance_display(self, step: int) -> None:
        """Shows nothing."""
        del step

    def report_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Shows nothing."""
        del step, metrics

    def exclude_seconds(self, seconds: float) -> None:
        """Does nothing, because no speed is shown."""
        del seconds

    def print_line(self, text: str) -> None:
        """Shows nothing."""
        del text


class _RemainingTimeColumn(ProgressColumn):
    """Progress-bar column with the remaining time, estimated from the mean speed of this process. Rich's own column
    uses only recent steps.
    """

    def __init__(self, start_step: int) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._start_step, self.speed = start_step, StepTimer(start_step, 0.0)

    def render(self, task: Task) -> Text:
        if task.completed <= self._start_step or task.elapsed is None or task.remaining is None:
            return Text('-:--:-- left', style='dim')
        step = int(task.completed)
        # The first step ends when the bar is drawn next, so the measured time is at most 0.25 s late.
        self.speed.record_step_time(step, task.elapsed)
        return Text(
            f'{format_duration(self.speed.seconds_per_step(step, task.elapsed) * task.remaining)} left', style='dim'
        )


def format_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the training metrics that a display shows, as texts: ['loss 2.5000', 'tokens/s 12,345']."""
    return [f'{text} {show(float(metrics[name]))}' for name, text, show in COLUMNS if name in metrics]


def format_duration(seconds: float) -> str:
    """Formats seconds as hours:minutes:seconds, such as '1:02:03'."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    return f'{minutes // 60}:{minutes % 60:02}:{rest:02}'
