"""Ends a process that makes no progress: input that does not come, a device, another process or a disk that hangs.

What it waits for cannot be interrupted from Python, so the process ends at once, with an exit code of its own. The
operating system then frees the lock of the workdir; a checkpoint that was under way has no seal and does not count.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import jax

from efficient_attention.errors import ExitCode, write_at_once
from efficient_attention.processes import phases

LONG = 6  # a compilation, an evaluation's batch or a save may take this many times as long as anything else
TICKS = 50  # looks at the time, within `seconds`
WRITE_SECONDS = 5.0  # that saying what was found may take; the disk may be what hangs

COMPILING = 'compiling and taking its first step'
INPUT = 'waiting for input'
DEVICE = 'waiting for the device'
EVALUATING = 'evaluating'
SAVING = 'saving'
PHASES = {
    COMPILING: phases.COMPILATION,
    INPUT: phases.INPUT,
    DEVICE: phases.STEP,
    EVALUATING: phases.EVALUATION,
    SAVING: phases.SAVE,
}


class Watchdog:
    """A thread that ends the process where no progress was noted for `seconds` while a run is at something.

    The first step, which compiles, evaluations and saves may take `LONG` times as long. No step has less time than the
    first one took. Time in which the process itself does not run, such as a suspended machine's, hardly counts.

    Args:
        seconds: without a sign of progress; 0 = no limit.
        workdir: gets the stacks of all threads, `stalled-<process>.txt`.
        end: is called with what was found, instead of ending the process.
        clock: seconds.
    """

    def __init__(
        self,
        seconds: float,
        workdir: Path,
        *,
        end: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._tick = seconds / TICKS
        self._stacks = workdir / f'stalled-{jax.process_index()}.txt'
        self._process = f'process {jax.process_index()} of {jax.process_count()}'
        self._end, self._clock = end or self._end_process, clock
        self._noted = (0, 0, '')  # how often, the step, what it is at
        self._seen, self._waited, self._looked = 0, 0.0, clock()  # of the thread alone
        self._closed = threading.Event()

    def note(self, step: int, doing: str) -> None:
        """Tells that there is progress, and what comes now; cheap, for every step.

        Args:
            step: that is under way.
            doing: one of the words above.
        """
        if self._noted[2] == COMPILING:
            self.seconds = max(self.seconds, self._waited)
        self._noted = (self._noted[0] + 1, step, doing)
        phases.note_phase(PHASES[doing], step)

    def look(self) -> None:
        """Adds the time since the last call, two ticks at most, and ends the process where it has become too much."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, 2 * self._tick), now
        notes, step, doing = self._noted
        self._waited = self._waited + passed if notes == self._seen else 0.0
        self._seen = notes
        limit = self.seconds if doing in (INPUT, DEVICE) else LONG * self.seconds
        if doing and self._waited > limit:
            self._end(
                f'{self._process} stalled at step {step}, {doing} for {self._waited:.0f} s (train.stall_seconds is '
                f'{self.seconds:g}); the stacks of its threads are in {self._stacks}'
            )

    def __enter__(self) -> Self:
        if self.seconds:
            threading.Thread(target=self._watch, name='watchdog', daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._tick):
            self.look()

    def _end_process(self, finding: str) -> None:
        """Says what was found and ends the process, also where a disk or a reader of its output hangs."""
        writer = threading.Thread(target=self._write, args=(finding,), daemon=True)
        writer.start()
        writer.join(WRITE_SECONDS)
        os._exit(ExitCode.WATCHDOG)

    def _write(self, finding: str) -> None:
        write_at_once(f'error: {finding}')
        try:
            with self._stacks.open('w', encoding='utf-8') as file:
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError:
            faulthandler.dump_traceback(2, all_threads=True)
        sys.stdout.flush()
        sys.stderr.flush()
