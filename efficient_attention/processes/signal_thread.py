"""Ends a command at Ctrl-C or SIGTERM, whatever the command is doing.

Python runs a signal handler in the main thread, between two of its instructions. It cannot run while XLA compiles. An
exception raised by the handler is lost if a library catches everything. It is also lost in a callback of the garbage
collector, where Python only prints it (JAX has such a callback). Therefore a separate thread receives each signal
through a pipe. The thread has a lost exception raised again, and ends the process if the main thread does not end in
time. As after SIGKILL, no half-written file has its final name, and an unfinished checkpoint is ignored.

This file imports only the standard library and modules that do so, so that an entry point can start with it.
"""

import atexit
import contextlib
import enum
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

from efficient_attention.errors import ExitCode, show_error, write_stderr_unlocked
from efficient_attention.processes.allocator import use_single_malloc_arena
from efficient_attention.processes.phases import IMPORTS, note_phase

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 2.0  # seconds that the main thread has to end the process
UNANSWERED = 1.0  # seconds after which the thread saves, if the main thread has not noticed the stop
TICK = 0.05  # seconds between two checks during a stop
ECHO = 0.1  # a repeated signal within these seconds counts once: `timeout` signals a process and then its group


class StoppedBySignal(KeyboardInterrupt):
    """Raised in the main thread by a stop signal while there is nothing to save; its text is the line for the user."""


class StopStage(enum.Enum):
    """The effect of a stop signal at the moment."""

    NOTHING_TO_SAVE = enum.auto()  # raises Stopped; GRACE seconds later the process ends in any case
    SAVING = enum.auto()  # the run saves and ends, however long that takes (`stop_signal.py`)
    SAVED = enum.auto()  # the run has saved and reported it; the process has GRACE seconds left


class StopSignalThread:
    """The thread that makes a stop signal end this process; a second signal ends it at once.

    The same signal within ECHO seconds does not count as a second one.

    Args:
        leave: exits the process with a code, without running anything else.
    """

    def __init__(self, leave: Callable[[int], Any] = os._exit) -> None:
        self.stage = StopStage.NOTHING_TO_SAVE
        self.number = 0  # number of the signal that requested the stop; 0 = none
        self._leave = leave
        self._since = 0.0  # when the stop, or the stage, began
        self._came = 0.0  # when the stop came
        self._is_seen = False  # whether the thread has seen the stop; the handler may have run before
        self._is_lost = False  # whether the handler's exception was lost in a callback
        self._echoes = 0  # number of signals that the thread has sent to the main thread and will receive itself
        self._rescue: Callable[[], int] | None = None
        self._turn = threading.Lock()  # held while the thread saves
        self._line = threading.Lock()  # acquired by the first thread that writes the line

    def install_signal_handlers(self) -> None:
        """Installs the handlers for both signals; call in the main thread."""
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._raise_stopped)
        self._show_lost, sys.unraisablehook = sys.unraisablehook, self._handle_unraisable
        self._show_error, sys.excepthook = sys.excepthook, self._handle_uncaught
        threading.Thread(target=self._run, name='stop', daemon=True).start()

    @property
    def is_ending(self) -> bool:
        """Whether a stop has come while there was nothing to save."""
        return self.number != 0 and self.stage is StopStage.NOTHING_TO_SAVE

    @property
    def stop_exit_code(self) -> int:
        """The exit code of the current stop."""
        if self.stage is StopStage.SAVED:
            return ExitCode.STOPPED
        return ExitCode.INTERRUPTED if self.number == signal.SIGINT else ExitCode.TERMINATED

    def enter_stage(self, stage: StopStage) -> None:
        """Starts a stage."""
        self.stage, self._since = stage, time.monotonic()

    @contextlib.contextmanager
    def save_if_unresponsive(self, save: Callable[[], int]) -> Iterator[None]:
        """Makes the thread call `save` and exit with its code, if a stop does not end the block in UNANSWERED seconds.

        Has an effect only during stage SAVING.
        """
        self._rescue, self._since = save, time.monotonic()
        try:
            yield
        finally:
            with self._turn:  # if the thread is saving, this waits until the process ends
                self._rescue = None

    def print_once(self, line: str) -> None:
        """Writes the line of this stop, unless it is already written."""
        if self._line.acquire(blocking=False):
            write_stderr_unlocked(line)

    def end_process(self) -> None:
        """Ends the process after a stop with nothing to save: writes the line, and skips Python's own clean-up.

        The clean-up may take long, or crash, if the stop has interrupted a library's work.
        """
        self.print_once(stop_message(self.number))
        with contextlib.suppress(OSError, ValueError):  # a closed pipe, or a closed file
            sys.stdout.flush()
        self._leave(self.stop_exit_code)

    def _raise_stopped(self, number: int, frame: FrameType | None) -> NoReturn:
        del frame
        self.number = self.number or number
        raise StoppedBySignal(stop_message(self.number))

    def _handle_unraisable(self, lost: Any) -> None:
        """Notices a lost `StoppedBySignal`; Python calls this for exceptions that it cannot raise, as in garbage
        collection."""
        if isinstance(lost.exc_value, StoppedBySignal):
            self._is_lost = True
        else:
            self._show_lost(lost)

    def _handle_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Ends a stopped process; Python calls this for uncaught exceptions, as in the imports of an entry point."""
        if self.is_ending:  # whatever error the stop has caused
            self.end_process()
        self._show_error(kind, error, trace)

    def _run(self) -> None:
        while True:
            for number in self._read_signals():
                self._handle_signal(number)
            if self._is_lost:
                self._resend_signal()
            if self._is_seen:
                self._end_if_due()

    def _read_signals(self) -> list[int]:
        """Returns the signals since the last call; waits without limit for the first, then at most TICK seconds."""
        if not select.select([self._reader], [], [], TICK if self._is_seen else None)[0]:
            return []
        found = [number for number in os.read(self._reader, 64) if number in SIGNALS]
        echoes = min(self._echoes, len(found))
        self._echoes -= echoes
        return found[echoes:]

    def _handle_signal(self, number: int) -> None:
        if self._is_seen and number == self.number and time.monotonic() - self._came < ECHO:
            return
        if self._is_seen:
            second = f'ended by a second {signal_name(number)}; what was not saved is lost'
            self.print_once(stop_message(number) if self.is_ending else second)
            self._leave(self.stop_exit_code)
        self.number = self.number or number
        self._is_seen, self._since = True, time.monotonic()
        self._came = self._since

    def _resend_signal(self) -> None:
        self._is_lost = False
        self._echoes += 1
        signal.pthread_kill(threading.main_thread().ident or 0, self.number)

    def _end_if_due(self) -> None:
        waited = time.monotonic() - self._since
        if self.stage is StopStage.SAVING:
            if waited > UNANSWERED:
                self._save()
        elif waited > GRACE:
            if self.is_ending:
                self.print_once(stop_message(self.number))
            self._leave(self.stop_exit_code)

    def _save(self) -> None:
        with self._turn:
            if not self._rescue:
                return
            try:
                code = self._rescue()
            except Exception as error:
                show_error(error)
                code = ExitCode.FAILED
            self._leave(code)


def signal_name(number: int) -> str:
    """Returns a signal's name for users."""
    return 'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name


def stop_message(number: int) -> str:
    """Returns the message of a stop with nothing to save."""
    return f'stopped by {signal_name(number)}; there was nothing to save'


_watches: list[StopSignalThread] = []  # the watch of this process, or none


def catch_stop_signals(*, keeps_freed_memory: bool = False) -> None:
    """Starts to catch stop signals; every entry point must call it first.

    Args:
        keeps_freed_memory: whether the entry point will tune the allocator. One setting must precede the thread that
            this function starts (allocator.py).
    """
    if not _watches:
        if keeps_freed_memory:
            use_single_malloc_arena()
        _watches.append(StopSignalThread())
        _watches[0].install_signal_handlers()
        atexit.register(_ignore_signals_at_exit)  # registered first, so called last
        note_phase(IMPORTS)


def _ignore_signals_at_exit() -> None:
    """Makes the process ignore stop signals from here on, because its work is done.

    Python resets its handlers before it unloads the modules. A signal in those tenths of a second would change the exit
    code of a finished command, without a message.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def current_signal_thread() -> StopSignalThread | None:
    """Returns this process's stop watch; None if no entry point runs, as in a notebook."""
    return _watches[0] if _watches else None
