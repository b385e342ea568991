"""Makes a training run save its state and end when it gets Ctrl-C, or SIGTERM from a scheduler."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

import jax

from efficient_attention.errors import RunStopped
from efficient_attention.processes.peer_monitor import can_agree_on_stop, is_agreed_stop_point
from efficient_attention.processes.signal_thread import (
    ECHO,
    SIGNALS,
    StoppedBySignal,
    StopStage,
    current_signal_thread,
    stop_message,
)


class EvaluationInterrupted(Exception):
    """Raised to end an evaluation early, because a stop signal has come."""


class GracefulStop:
    """Context manager in which the first SIGINT or SIGTERM makes a run save its state and end.

    A second signal, more than ECHO seconds later, ends the process at once. Before `enable_graceful_stop` is called, a
    signal has the same effect as outside of the context.

    In a run of several processes, a signal to any of them stops all at the same point, on which they agree
    (`stop_agreement.py`). Processes that are not connected through `join_hosts.py` cannot agree. There a signal has the
    same effect as outside of the context.

    Raises:
        StoppedBySignal: a signal came while an earlier run of this process ended.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.is_alone = jax.process_count() == 1
        self._watch = current_signal_thread()
        self._previous: dict[int, Any] = {}
        self._came: dict[int, float] = {}  # {signal number: time at which the signal first came}
        if self._watch and self._watch.number:
            # A stop signal came while an earlier run in this process was finishing; that run has not reported it.
            self._watch.enter_stage(StopStage.NOTHING_TO_SAVE)
            raise StoppedBySignal(stop_message(self._watch.number))

    def enable_graceful_stop(self) -> None:
        """Makes the next stop signal save and end the run; called as soon as there is something to save.

        Has no effect outside the main thread, because Python lets only the main thread handle signals.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if self._previous or not is_main or not (self.is_alone or can_agree_on_stop()):
            return
        if self._watch:
            self._watch.enter_stage(StopStage.SAVING)
        self._previous = {number: signal.signal(number, self._handle_signal) for number in SIGNALS}

    def is_stop_due(self) -> bool:
        """Whether a stop signal has come and the run should end here; all processes must call this equally often."""
        if not self.is_set and not self.is_alone:
            self.is_set = is_agreed_stop_point(is_wanted=bool(self._came))
        return self.is_set

    def raise_if_stop_due(self) -> None:
        """Raises EvaluationInterrupted if the run should stop; does nothing before `enable_graceful_stop` is called."""
        if self._previous and self.is_stop_due():
            raise EvaluationInterrupted

    @contextlib.contextmanager
    def save_if_unresponsive(self, save: Callable[[], int]) -> Iterator[None]:
        """Context in which another thread saves and exits after a stop signal if the main thread is busy compiling.

        If the main thread does not notice a signal, another thread calls `save` and exits the process with the returned
        code. Has no effect in a run of several processes, because they can save only together.
        """
        is_possible = self._previous and self.is_alone
        with self._watch.save_if_unresponsive(save) if self._watch and is_possible else contextlib.nullcontext():
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        if kind is RunStopped and not self.is_alone:
            # The process must still disconnect from the other processes (join_hosts.py), so it keeps the handlers.
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if not self._watch or not self._previous:
            return
        # If a signal came, but the run ends for another reason, the stage stays SAVING: the signal has no effect.
        if not self.is_set and not self._came:
            self._watch.enter_stage(StopStage.NOTHING_TO_SAVE)
        elif kind is RunStopped:
            self._watch.enter_stage(StopStage.SAVED)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number in self._came:
            if time.monotonic() - self._came[number] > ECHO:
                signal.signal(number, self._previous[number])
                signal.raise_signal(number)
            return
        self._came[number] = time.monotonic()
        self.is_set = self.is_set or self.is_alone
