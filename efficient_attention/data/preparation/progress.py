"""Shows the progress of a long data preparation: a progress bar on a terminal, plain lines elsewhere."""

import sys
import time
import types
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

PERIOD = 10.0  # seconds between two lines, if the output is no terminal


class Progress:
    """Reports the progress of each step of a job on the standard error stream; used as a context manager."""

    def __init__(self, title: str, *, is_shown: bool) -> None:
        self._title = title
        self._is_shown = is_shown
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._step, self._done, self._said = '', 0, 0.0
        self._total: int | None = None

    def __enter__(self) -> Self:
        console = Console(stderr=True)
        if self._is_shown and console.is_terminal:
            columns = (
                TextColumn('{task.description}', markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=console)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, step: str, total: int | None = None) -> None:
        """Begins a step that will process `total` characters or rows; None = unknown total."""
        self._step, self._total, self._done, self._said = step, total, 0, time.monotonic()
        if self._bar is None:
            self.print_line(step)
        else:
            self._task = self._bar.add_task(f'{self._title}: {step}', total=total)

    def advance(self, count: int) -> None:
        """Adds `count` characters or rows to the progress of the current step."""
        self._done += count
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, count)
        elif time.monotonic() - self._said >= PERIOD:
            self._said = time.monotonic()
            self.print_line(f'{self._step}: {self._done:,}' + (f' of {self._total:,}' if self._total else ''))

    def print_line(self, text: str) -> None:
        """Prints a line that stays visible above the progress bar."""
        if self._bar is not None:
            self._bar.console.print(f'{self._title}: {text}', markup=False, highlight=False, soft_wrap=True)
        elif self._is_shown:
            print(f'{self._title}: {text}', file=sys.stderr, flush=True)
