"""Handles a request to stop a run that has something to save: Ctrl-C, or SIGTERM from a scheduler."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

import jax

from efficient_attention.errors import RunStopped
from efficient_attention.processes.peers import can_agree_on_stop, is_agreed_stop_point
from efficient_attention.processes.signal_thread import (
    ECHO,
    SIGNALS,
    StoppedBySignal,
    StopStage,
    current_signal_thread,
    stop_message,
)


class EvaluationInterrupted(Exception):
    """Raised to end an evaluation early, because the run should stop."""


class StopSignal:
    """Context manager in which, after `expect`, the first SIGINT or SIGTERM asks the run to save and end.

    A second signal, more than ECHO seconds later, ends the process at once. Before `expect` a signal acts as it does
    outside of the context.

    In a run of several processes, a signal to any of them stops all at the same point, on which they agree
    (`stop_agreement.py`). Processes not connected through `hosts.py` cannot agree: there a signal acts as outside.

    Raises:
        Stopped: a signal came while an earlier run of this process ended.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.is_alone = jax.process_count() == 1
        self._watch = current_signal_thread()
        self._previous: dict[int, Any] = {}
        self._came: dict[int, float] = {}  # time of each signal's first arrival
        if self._watch and self._watch.number:
            # The earlier run has saved its last step, but the stop is not yet reported.
            self._watch.enter_stage(StopStage.NOTHING_TO_SAVE)
            raise StoppedBySignal(stop_message(self._watch.number))

    def enable_graceful_stop(self) -> None:
        """Enables the handling of stop signals, because there is now something to save."""
        if self._previous or not (self.is_alone or can_agree_on_stop()):
            return
        if self._watch:
            self._watch.enter_stage(StopStage.SAVING)
        self._previous = {number: signal.signal(number, self._handle_signal) for number in SIGNALS}

    def is_stop_due(self) -> bool:
        """Whether the run should end here; with several processes, all must call this equally often."""
        if not self.is_set and not self.is_alone:
            self.is_set = is_agreed_stop_point(is_wanted=bool(self._came))
        return self.is_set

    def raise_if_stop_due(self) -> None:
        """Raises Cut if `is_due`; only after `expect`."""
        if self._previous and self.is_stop_due():
            raise EvaluationInterrupted

    @contextlib.contextmanager
    def save_if_unresponsive(self, save: Callable[[], int]) -> Iterator[None]:
        """Context for work, such as a compilation, during which the main thread may not notice a stop for seconds.

        If it does not notice a stop, another thread calls `save` and exits the process with the returned code. Has no
        effect with several processes, since they can save only together.
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
            return  # each must still leave the others (hosts.py); later signals belong to the same stop
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if not self._watch or not self._previous:
            return
        # After any other error, or a stop that came too late, the run ends as without the stop.
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
