"""Measures the speed of a run and its time spent waiting for data, and lists the peak FLOP/s of known devices."""

import contextlib
import time
from collections.abc import Callable, Iterator

TERA = 1e12

# Peak FLOP/s of one JAX device, for dense bfloat16 matrix multiplication with float32 sums.
# The first name in this list that occurs in the device kind is used, so specific models come before general names.
# Source for GPUs: NVIDIA's datasheets of A100, H100 and H200.
# From the H100 on, NVIDIA's datasheets print twice this number, for 2:4 sparsity.
# Source for TPUs: Google Cloud TPU documentation, system architecture pages of v4, v5e, v5p and v6e (per chip).
PEAKS: tuple[tuple[str, float], ...] = (
    ('A100', 312 * TERA),
    ('H100 PCIe', 756.5 * TERA),
    ('H100 NVL', 835.5 * TERA),
    ('H100', 989.5 * TERA),
    ('H200 NVL', 835.5 * TERA),
    ('H200', 989.5 * TERA),
    ('TPU v4', 275 * TERA),
    ('TPU v5 lite', 197 * TERA),
    ('TPU v5e', 197 * TERA),
    ('TPU v5', 459 * TERA),  # The device kind of a v5p is 'TPU v5' or 'TPU v5p'.
    ('TPU v6 lite', 918 * TERA),
    ('TPU v6e', 918 * TERA),
)
# This is the device kind of the inference chip v4i. PEAKS has no entry for it; 'TPU v4' is another chip.
OTHERS = ('TPU v4 lite',)


class Throughput:
    """Measures a run's rates since the last measurement: tokens per second, share of time waiting for data, and use of
    the device.

    Steps run asynchronously. Call `measure_rates` only after the results of the last counted step are on the host;
    otherwise the time of running steps is missing. Time spent in `pause_timing` (evaluation, a report) does not count.

    Args:
        tokens_per_step: tokens of the global batch, padding included.
        flops_per_step: floating-point operations of the model for one step on all devices, without recomputation for
            rematerialisation; None = not known.
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
        # the share of the peak FLOP/s that is used at a speed of one step per second
        self._use_per_rate = flops_per_step / peak_flops if flops_per_step and peak_flops else None
        self._clock = clock
        self.restart()

    @contextlib.contextmanager
    def time_data_wait(self, is_idle: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Context manager that counts its time as waiting for data if the device is idle at its end. The true waiting
        time may be shorter.
        """
        start = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - start if is_idle() else 0.0

    @contextlib.contextmanager
    def pause_timing(self) -> Iterator[None]:
        """Context manager for evaluations and reports, whose time is left out of all rates."""
        start = self._clock()
        try:
            yield
        finally:
            self._start += self._clock() - start

    def measure_rates(self, steps: int) -> dict[str, float]:
        """Returns the rates over the `steps` training steps since the last call, and starts a new interval.

        Keys: steps_per_second, tokens_per_second, waiting_share (of the time, 0 to 1) and, if the peak is known,
        flops_utilisation (operations of the model / peak operations of the devices). Returns {} if all of the steps
        came before a `restart`.
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
        """Starts a new interval of measurement now. The next `measure_rates` subtracts `untimed` steps, which were made
        before.
        """
        self._start = self._clock()
        self._waited = 0.0
        self._untimed = untimed


def peak_flops(device_kind: str) -> float | None:
    """Returns a device's peak FLOP/s in bfloat16, by its `jax.Device.device_kind`; None if the device is unknown, such
    as a CPU.
    """
    if any(name in device_kind for name in OTHERS):
        return None
    return next((peak for name, peak in PEAKS if name in device_kind), None)
