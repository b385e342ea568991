"""Ends a command at Ctrl-C or SIGTERM, wherever it is at that moment.

A handler of Python's runs in the main thread, between two of its instructions. It does not run while XLA compiles, and
what it raises is lost where a library catches everything, or in a callback of the garbage collector, in which Python
prints an exception and goes on (JAX has such a callback). So a thread of its own learns of each signal through a pipe.
It has the exception raised again where it was lost, and ends the process where the main thread does not end in time.
As after SIGKILL, no half-written file is left under its final name, and an unfinished checkpoint is ignored.

This file needs Python alone, so that an entry point can begin with it.
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

from efficient_attention.errors import ExitCode, show_error, write_at_once
from efficient_attention.processes.allocator import share_one_arena
from efficient_attention.processes.phases import IMPORTS, note_phase

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 2.0  # seconds that the main thread has to end the process
UNANSWERED = 1.0  # seconds after which the thread saves for a main thread that does not come to it
TICK = 0.05  # seconds between two looks at what has become of a stop
ECHO = 0.1  # seconds in which the same signal counts once: `timeout` sends it to a process and then to its group


class Stopped(KeyboardInterrupt):
    """Raised in the main thread by a stop signal while there is nothing to save; its text is the line for the user."""


class Stage(enum.Enum):
    """What a stop does."""

    NOTHING_TO_SAVE = enum.auto()  # raises Stopped, and GRACE seconds later the process ends in any case
    SAVING = enum.auto()  # the run saves and ends, however long that takes (`stop_signal.py`)
    SAVED = enum.auto()  # the run has saved and said so; the process has GRACE seconds left


class StopWatch:
    """The thread that sees to it that a stop signal ends this process; a second signal ends it at once.

    The same one within ECHO seconds is not a second one.

    Args:
        leave: ends the process with an exit code, without running anything else.
    """

    def __init__(self, leave: Callable[[int], Any] = os._exit) -> None:
        self.stage = Stage.NOTHING_TO_SAVE
        self.number = 0  # of the signal that asked for the stop; 0 = none has
        self._leave = leave
        self._since = 0.0  # when the stop, or the stage, began
        self._came = 0.0  # when the stop came
        self._is_seen = False  # by the thread; the handler may have had the first signal before it
        self._is_lost = False  # what the handler raised was printed by Python and dropped
        self._echoes = 0  # signals that the thread has sent to the main thread and will see itself
        self._rescue: Callable[[], int] | None = None
        self._turn = threading.Lock()  # held while the thread saves
        self._line = threading.Lock()  # taken by who says it

    def install(self) -> None:
        """Takes both signals over; in the main thread."""
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._raise)
        self._show_lost, sys.unraisablehook = sys.unraisablehook, self._notice_lost
        self._show_error, sys.excepthook = sys.excepthook, self._end_or_show
        threading.Thread(target=self._run, name='stop', daemon=True).start()

    @property
    def is_ending(self) -> bool:
        """Whether a stop has come while there was nothing to save."""
        return self.number != 0 and self.stage is Stage.NOTHING_TO_SAVE

    @property
    def code(self) -> int:
        """The exit code of the stop that has come."""
        if self.stage is Stage.SAVED:
            return ExitCode.STOPPED
        return ExitCode.INTERRUPTED if self.number == signal.SIGINT else ExitCode.TERMINATED

    def enter(self, stage: Stage) -> None:
        """Begins a stage."""
        self.stage, self._since = stage, time.monotonic()

    @contextlib.contextmanager
    def rescue(self, save: Callable[[], int]) -> Iterator[None]:
        """Within it, and while the stage is SAVING, the thread calls `save` and leaves with the code that it returns if
        the block does not end within UNANSWERED seconds of a stop."""
        self._rescue, self._since = save, time.monotonic()
        try:
            yield
        finally:
            with self._turn:  # where the thread saves, this waits for the end of the process
                self._rescue = None

    def say(self, line: str) -> None:
        """Writes the line of this stop, unless it is written."""
        if self._line.acquire(blocking=False):
            write_at_once(line)

    def end(self) -> None:
        """Ends the process after a stop that leaves nothing to save, with its line and without Python's own clean-up.

        That may take long, or crash, where the stop has broken off a library's work half-way.
        """
        self.say(line_of(self.number))
        with contextlib.suppress(OSError, ValueError):  # a closed pipe, or a closed file
            sys.stdout.flush()
        self._leave(self.code)

    def _raise(self, number: int, frame: FrameType | None) -> NoReturn:
        del frame
        self.number = self.number or number
        raise Stopped(line_of(self.number))

    def _notice_lost(self, lost: Any) -> None:
        """Python calls this with an exception that it cannot hand on, as in a callback of the garbage collector."""
        if isinstance(lost.exc_value, Stopped):
            self._is_lost = True
        else:
            self._show_lost(lost)

    def _end_or_show(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Python calls this with an exception that nobody has caught, as in the imports of an entry point."""
        if self.is_ending:  # whatever the stop has broken on its way
            self.end()
        self._show_error(kind, error, trace)

    def _run(self) -> None:
        while True:
            for number in self._arrived():
                self._receive(number)
            if self._is_lost:
                self._raise_again()
            if self._is_seen:
                self._end_if_due()

    def _arrived(self) -> list[int]:
        """The signals that have come; waits for the first of all."""
        if not select.select([self._reader], [], [], TICK if self._is_seen else None)[0]:
            return []
        found = [number for number in os.read(self._reader, 64) if number in SIGNALS]
        echoes = min(self._echoes, len(found))
        self._echoes -= echoes
        return found[echoes:]

    def _receive(self, number: int) -> None:
        if self._is_seen and number == self.number and time.monotonic() - self._came < ECHO:
            return
        if self._is_seen:
            second = f'ended by a second {name_of(number)}; what was not saved is lost'
            self.say(line_of(number) if self.is_ending else second)
            self._leave(self.code)
        self.number = self.number or number
        self._is_seen, self._since = True, time.monotonic()
        self._came = self._since

    def _raise_again(self) -> None:
        self._is_lost = False
        self._echoes += 1
        signal.pthread_kill(threading.main_thread().ident or 0, self.number)

    def _end_if_due(self) -> None:
        waited = time.monotonic() - self._since
        if self.stage is Stage.SAVING:
            if waited > UNANSWERED:
                self._save()
        elif waited > GRACE:
            if self.is_ending:
                self.say(line_of(self.number))
            self._leave(self.code)

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


def name_of(number: int) -> str:
    """What a user calls the signal."""
    return 'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name


def line_of(number: int) -> str:
    """What is said of a stop that leaves nothing to save."""
    return f'stopped by {name_of(number)}; there was nothing to save'


_watches: list[StopWatch] = []  # none, or that of this process


def catch_stop_signals(*, keeps_freed_memory: bool = False) -> None:
    """Begins to catch stop signals: the first thing that an entry point does.

    Args:
        keeps_freed_memory: whether the entry point will tune the allocator, a part of which has to come before the
            thread that is started here (allocator.py).
    """
    if not _watches:
        if keeps_freed_memory:
            share_one_arena()
        _watches.append(StopWatch())
        _watches[0].install()
        atexit.register(_let_it_end)  # the first that is registered is called last
        note_phase(IMPORTS)


def _let_it_end() -> None:
    """Has a process ignore stop signals from here on, as all that it had to do is done.

    Python gives its handlers up before it takes the modules apart. A signal in those tenths of a second would end with
    its own number, and without a line, what has ended already.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def stop_watch() -> StopWatch | None:
    """That of this process; None where no entry point runs, as in a notebook."""
    return _watches[0] if _watches else None
