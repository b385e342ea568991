"""Makes Ctrl-C and SIGTERM end a command in time, even while a library or a compilation keeps the main thread busy.

Python runs a signal handler in the main thread, between two of its instructions. The handler cannot run while XLA
compiles. An exception raised by the handler is lost if a library catches all exceptions. It is also lost in a callback
of the garbage collector, where Python only prints it (JAX has such a callback). Therefore a separate thread receives
each signal through a pipe. If an exception was lost, the thread sends the signal again. If the main thread does not end
in time, the thread ends the process. As after SIGKILL, no half-written file has its final name, and an unfinished
checkpoint is ignored.

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
from efficient_attention.processes.phase_log import IMPORTS, note_phase

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 2.0  # seconds after a stop signal in which the main thread must end the process
OWN_PACKAGES = ('configs', 'efficient_attention', 'scripts')
UNANSWERED = 1.0  # seconds after which the signal thread saves, if the main thread has not noticed the stop
TICK = 0.05  # seconds between two checks of the signal thread during a stop
# A signal repeated within these seconds counts once, because `timeout` signals a process and then its process group.
ECHO = 0.1


class StoppedBySignal(KeyboardInterrupt):
    """Raised in the main thread by Ctrl-C or SIGTERM while there is nothing to save; its text is for the user."""


class StopStage(enum.Enum):
    """What Ctrl-C or SIGTERM does at present: end the process, or let the run save its state first."""

    NOTHING_TO_SAVE = enum.auto()  # a signal raises StoppedBySignal; the process ends at most GRACE seconds later
    SAVING = enum.auto()  # a signal makes the run save and end, however long that takes (`graceful_stop.py`)
    SAVED = enum.auto()  # after a signal, the run has saved and reported it; the process must end in GRACE seconds


class StopSignalThread:
    """A thread that ends this process after Ctrl-C or SIGTERM, if the main thread does not end in time.

    A second signal ends the process at once. The same signal within ECHO seconds does not count as a second one.

    Args:
        leave: exits the process with an exit code, without running anything else.
    """

    def __init__(self, leave: Callable[[int], Any] = os._exit) -> None:
        self.stage = StopStage.NOTHING_TO_SAVE
        self.number = 0  # number of the signal that requested the stop; 0 = none
        self._leave = leave
        self._since = 0.0  # time at which the stop or, if later, the current stage began
        self._came = 0.0  # time at which the stop signal came
        self._is_seen = False  # whether this thread has seen the stop signal; the main thread may have seen it earlier
        self._is_lost = False  # whether the handler's exception was lost in a callback of the garbage collector
        self._echoes = 0  # number of signals that this thread has sent to the main thread and will receive itself
        self._rescue: Callable[[], int] | None = None
        self._turn = threading.Lock()  # lock that this thread holds while it saves
        self._line = threading.Lock()  # only the thread that gets this lock writes the message

    def install_signal_handlers(self) -> None:
        """Installs the handlers of SIGINT and SIGTERM, and starts this thread; must be called in the main thread."""
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
        """Whether the process ends because of a stop signal that came while there was nothing to save."""
        return self.number != 0 and self.stage is StopStage.NOTHING_TO_SAVE

    @property
    def stop_exit_code(self) -> int:
        """The exit code of a process that ends because of a stop signal."""
        if self.stage is StopStage.SAVED:
            return ExitCode.STOPPED
        return ExitCode.INTERRUPTED if self.number == signal.SIGINT else ExitCode.TERMINATED

    def enter_stage(self, stage: StopStage) -> None:
        """Sets what a stop signal does from now on."""
        self.stage, self._since = stage, time.monotonic()

    @contextlib.contextmanager
    def save_if_unresponsive(self, save: Callable[[], int]) -> Iterator[None]:
        """Context in which this thread saves and exits if the main thread does not react to a stop signal in time.

        The thread then calls `save`, and exits the process with the returned code. The time is UNANSWERED seconds. Has
        an effect only in the stage SAVING.
        """
        self._rescue, self._since = save, time.monotonic()
        try:
            yield
        finally:
            with self._turn:  # waits while the signal thread saves; that thread then ends the process
                self._rescue = None

    def print_stop_message_once(self, line: str) -> None:
        """Writes the message about a stop to standard error, unless another thread has already written one."""
        if self._line.acquire(blocking=False):
            write_stderr_unlocked(line)

    def end_process(self) -> None:
        """Ends the process after a stop with nothing to save: writes the message, and skips Python's own clean-up.

        The clean-up may take long, or crash, if the stop has interrupted a library's work.
        """
        self.print_stop_message_once(stop_message(self.number))
        with contextlib.suppress(OSError, ValueError):  # standard output may be a closed pipe or a closed file
            sys.stdout.flush()
        self._leave(self.stop_exit_code)

    def _raise_stopped(self, number: int, frame: FrameType | None) -> NoReturn:
        del frame
        self.number = self.number or number
        raise StoppedBySignal(stop_message(self.number))

    def _handle_unraisable(self, lost: Any) -> None:
        """Notices that a `StoppedBySignal` was lost, as in a callback of the garbage collector.

        Python calls this method for exceptions that it cannot raise.
        """
        if isinstance(lost.exc_value, StoppedBySignal):
            self._is_lost = True
        else:
            self._show_lost(lost)

    def _handle_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Ends a stopped process without a traceback, and explains a missing package in one line; Python calls this
        method for uncaught exceptions.
        """
        # A stop signal may surface as any error, for example during the imports of an entry point.
        if self.is_ending:
            self.end_process()
        if isinstance(error, ModuleNotFoundError) and str(error.name).partition('.')[0] not in OWN_PACKAGES:
            show_error(
                ModuleNotFoundError(f'{error}; run `make install-run`, then start commands with .venv/bin/python')
            )
            return
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
        """Returns the numbers of the signals received since the last call.

        Waits for the first signal without limit, and at most TICK seconds for later signals.
        """
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
            self.print_stop_message_once(stop_message(number) if self.is_ending else second)
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
                self.print_stop_message_once(stop_message(self.number))
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
    """Returns the name of a signal as users know it, such as 'Ctrl-C' or 'SIGTERM'."""
    return 'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name


def stop_message(number: int) -> str:
    """Returns the message for a process that a signal stopped while there was nothing to save."""
    return f'stopped by {signal_name(number)}; there was nothing to save'


_watches: list[StopSignalThread] = []  # holds this process's signal thread; nothing before `catch_stop_signals`


def catch_stop_signals(*, keeps_freed_memory: bool = False) -> None:
    """Starts to handle Ctrl-C and SIGTERM in this process; every entry point must call this function first.

    Args:
        keeps_freed_memory: whether the entry point will tune the allocator. One setting must precede the thread that
            this function starts (allocator.py).
    """
    # XLA prints lines with raw prefixes unless told otherwise before the first import of JAX. Level 2 would keep its
    # errors, but also 'E1130 ... slow_operation_alarm.cc': XLA logs each slow compilation as an error, and the line
    # about progress says that already. A fault of XLA reaches the user as an exception.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    if not _watches:
        if keeps_freed_memory:
            use_single_malloc_arena()
        _watches.append(StopSignalThread())
        _watches[0].install_signal_handlers()
        atexit.register(_ignore_signals_at_exit)  # Python runs exit functions in reverse order, so this runs last
        note_phase(IMPORTS)


def _ignore_signals_at_exit() -> None:
    """Makes the process ignore stop signals while Python exits, because the work is done.

    Python resets its handlers before it unloads the modules. A signal in those tenths of a second would change the exit
    code of a finished command, without a message.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def current_signal_thread() -> StopSignalThread | None:
    """Returns the thread that handles stop signals in this process; None without one, as in a notebook."""
    return _watches[0] if _watches else None
