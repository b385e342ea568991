"""Whether someone asked this process to stop: Ctrl-C, or SIGTERM from a scheduler."""

import signal
from types import FrameType, TracebackType
from typing import Self


class StopSignal:
    """Within it, the first SIGINT or SIGTERM sets `is_set` and the run ends after its step; a second one ends it at
    once.

    For a process on its own. With `jax.distributed` the hosts must agree on the step, which JAX's own handler sees to.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.is_set = False

    def __enter__(self) -> Self:
        self.previous = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
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
