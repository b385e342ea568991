"""Notices a request to stop the run: Ctrl-C, or SIGTERM from a scheduler."""

import signal
from types import FrameType, TracebackType
from typing import Self

import jax
from jax.experimental import multihost_utils


class StopSignal:
    """Within it, the first SIGINT or SIGTERM asks the run to end after its step; a second one ends it at once.

    In a run of several processes the handler of `jax.distributed` catches SIGTERM, and all processes agree on the step
    at which they stop; a handler of our own would keep it from doing so, and none is installed.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.is_set = False
        self.is_alone = jax.process_count() == 1

    def is_due(self, step: int) -> bool:
        """Whether the run should end after `step`; with several processes each calls this once a step."""
        return self.is_set if self.is_alone else multihost_utils.reached_preemption_sync_point(step)

    def __enter__(self) -> Self:
        signals = self.SIGNALS if self.is_alone else ()
        self.previous = {number: signal.signal(number, self._receive) for number in signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.is_set = True
        signal.signal(number, self.previous[signal.Signals(number)])
