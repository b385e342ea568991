"""The speed of a run, and the time that it waits for data."""

import contextlib
import time
from collections.abc import Callable, Iterator


class Throughput:
    """Rates of a run since it was last asked: tokens a second, share of time waiting for data, use of the device.

    Steps run asynchronously: ask only after the results of the last step counted are on the host, or the time of the
    steps still under way is missing. Time spent in `paused()` (evaluation, a report) does not count.

    Args:
        tokens_per_step: tokens of the global batch, padding included.
        flops_per_step: floating-point operations that the model needs for one step on all devices, without those that
            rematerialisation repeats; None = not known.
        peak_flops: FLOP/s of all devices together; None = not known.
        clock: seconds.
    """

    def __init__(
        self,
        *,
        tokens_per_step: float,
        flops_per_step: float | None = None,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tokens_per_step = tokens_per_step
        # Share of the peak that one step a second would be.
        self._use_per_rate = flops_per_step / peak_flops if flops_per_step and peak_flops else None
        self._clock = clock
        self.restart()

    @contextlib.contextmanager
    def waiting(self, is_idle: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Counts the time inside as waiting for data if the device is idle at its end: an upper bound."""
        start = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - start if is_idle() else 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time that passes inside counts for no rate."""
        start = self._clock()
        try:
            yield
        finally:
            self._start += self._clock() - start

    def measure(self, steps: int) -> dict[str, float]:
        """Returns the rates over the `steps` made since the last call, and starts anew.

        Keys: steps_per_second, tokens_per_second, waiting_share (of the time, 0 to 1) and, where the peak is known,
        flops_utilisation (operations the model needs / operations the devices could have made). Empty if all of the
        steps came before a `restart`.
        """
        timed, seconds = steps - self._untimed, max(self._clock() - self._start, 1e-9)
        if timed < 1:
            self.restart()
            return {}
        rate = timed / seconds
        rates = {
            'steps_per_second': rate,
            'tokens_per_second': rate * self._tokens_per_step,
            'waiting_share': min(self._waited / seconds, 1.0),
        }
        if self._use_per_rate is not None:
            rates['flops_utilisation'] = rate * self._use_per_rate
        self.restart()
        return rates

    def restart(self, untimed: int = 0) -> None:
        """Begins a new interval now; of the steps in it, `untimed` were made before."""
        self._start = self._clock()
        self._waited = 0.0
        self._untimed = untimed
