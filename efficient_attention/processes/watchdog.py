"""Ends a training process that makes no progress, because its input, a device, another process or a disk hangs.

Python cannot interrupt such a wait, so the process ends at once, with a special exit code. The operating system then
frees the lock of the workdir. A checkpoint in progress has no checksums and does not count.
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

from efficient_attention.errors import ExitCode, write_stderr_unlocked
from efficient_attention.processes import phase_log

LONG = 6  # compilations, evaluation batches and saves may take this many times the time limit
TICKS = 50  # number of checks of the watchdog within its time limit
WRITE_SECONDS = 5.0  # time limit in seconds for writing the report, because the disk itself may hang

COMPILING = 'compiling the training step'
INPUT = 'waiting for input'
DEVICE = 'waiting for the device'
EVALUATING = 'evaluating'
SAVING = 'saving'
PHASES = {
    COMPILING: phase_log.COMPILATION,
    INPUT: phase_log.INPUT,
    DEVICE: phase_log.STEP,
    EVALUATING: phase_log.EVALUATION,
    SAVING: phase_log.SAVE,
}


class Watchdog:
    """A thread that ends the process if the training loop has not reported progress for a given time.

    The first step, which compiles, evaluations and saves may take `LONG` times as long. No step gets less time than the
    first one took. Time in which the process itself does not run, such as on a suspended machine, hardly counts.

    Args:
        seconds: time limit without progress; 0 = no limit.
        workdir: receives the stacks of all threads, in `stalled-<process>.txt`.
        end: called with the message, instead of ending the process.
        clock: returns the time in seconds.
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
        self._noted = (0, 0, '')  # number of progress reports, and the step and phase of the latest report
        self._seen, self._waited, self._looked = 0, 0.0, clock()  # only the watchdog's thread uses these fields
        self._closed = threading.Event()

    def note_progress(self, step: int, doing: str) -> None:
        """Reports that the training loop has progressed, and which phase begins now; cheap enough for every step.

        Args:
            step: the current step.
            doing: one of the phases above, such as COMPILING.
        """
        if self._noted[2] == COMPILING:
            self.seconds = max(self.seconds, self._waited)
        self._noted = (self._noted[0] + 1, step, doing)
        phase_log.note_phase(PHASES[doing], step)

    def activity(self) -> str:
        """Returns the present phase in words, for the progress display; any thread may call it."""
        doing = self._noted[2]
        return doing if doing in (COMPILING, EVALUATING, SAVING) else 'training' if doing else 'preparing'

    def check_progress(self) -> None:
        """Adds up the time without progress; ends the process if this time exceeds the limit.

        Each call adds at most two ticks (`seconds` / TICKS), so that a pause of the whole machine hardly counts.
        """
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
            threading.Thread(target=self._check_periodically, name='watchdog', daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._closed.set()

    def _check_periodically(self) -> None:
        while not self._closed.wait(self._tick):
            self.check_progress()

    def _end_process(self, finding: str) -> None:
        """Writes the message and the stacks of all threads, and ends the process, even if a disk or output hangs."""
        writer = threading.Thread(target=self._write_stack_traces, args=(finding,), daemon=True)
        writer.start()
        writer.join(WRITE_SECONDS)
        os._exit(ExitCode.WATCHDOG)

    def _write_stack_traces(self, finding: str) -> None:
        write_stderr_unlocked(f'error: {finding}')
        try:
            with self._stacks.open('w', encoding='utf-8') as file:
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError:
            faulthandler.dump_traceback(2, all_threads=True)
        sys.stdout.flush()
        sys.stderr.flush()
