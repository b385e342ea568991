"""Tracks the training steps that the host has sent to the device, and sums the metrics of finished steps."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax

from efficient_attention.errors import InputError
from efficient_attention.objectives.objective import Batch
from efficient_attention.training.state import (
    NOWHERE,
    NonFiniteTrainingError,
    TrainState,
    check_state_finite,
    step_array_names,
)

RUN_AHEAD = 2  # The host queues at most this many steps on the device before it waits for the oldest of them.
# Limits the total seconds of the steps queued behind the running step, because a stop signal waits for all of them.
# If one step takes longer than this limit, no step is queued; the device then waits for the host after each step.
QUEUED_SECONDS = 2.0
INTERVAL = 'interval'  # key in a checkpoint's JSON record; the value comes from `MetricsInterval.as_json`


class MetricsInterval:
    """Sums the metrics of all training steps since the last log line. Checkpoints store these sums.

    The means exclude skipped steps, unless all steps were skipped. Sums are added in the order of the steps.
    An interval interrupted by a checkpoint therefore has, bit for bit, the means of an unbroken interval.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0  # number of steps skipped in the whole run so far
        self._counted = 0  # number of steps in this interval that were not skipped
        # sums over the steps that were not skipped, or over all steps if every step was skipped
        self._sums: dict[str, float] = {}

    def add_step(self, metrics: Mapping[str, float], *, is_skipped: bool) -> None:
        """Adds the metrics of one step to the sums. `metrics['skipped']` is the number of steps skipped in the run so
        far.
        """
        self.steps += 1
        self.skipped = int(metrics['skipped'])
        if is_skipped and self._counted:
            return
        if not is_skipped and not self._counted:
            self._sums = {}
        self._counted += not is_skipped
        for name, value in metrics.items():
            if name != 'skipped':
                self._sums[name] = self._sums.get(name, 0.0) + value

    def mean_metrics(self) -> dict[str, float]:
        """Returns the mean of each metric over the interval, and under 'skipped' the steps skipped in the run so far;
        {} without steps.
        """
        shares = {name: total / (self._counted or self.steps) for name, total in self._sums.items()}
        return shares | ({'skipped': self.skipped} if self.steps else {})

    def as_json(self) -> dict[str, Any]:
        """Returns the sums of metrics as JSON values, which `from_json` loads again."""
        sums = [[name, total if math.isfinite(total) else str(total)] for name, total in self._sums.items()]
        return {'steps': self.steps, 'skipped': self.skipped, 'counted': self._counted, 'sums': sums}

    @classmethod
    def from_json(cls, saved: Any) -> 'MetricsInterval':
        """Returns the sums of metrics from the JSON values that `as_json` returned.

        Raises:
            InputError: `saved` does not have the form that `as_json` returns.
        """
        found = cls()
        try:
            found.steps, found.skipped, found._counted = (int(saved[name]) for name in ('steps', 'skipped', 'counted'))
            # `as_json` stores (metric name, sum) pairs in a list, because a list keeps the order of the metrics.
            found._sums = {str(name): float(total) for name, total in saved['sums']}
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError(
                f'{INTERVAL} of a checkpoint is {str(saved)[:40]!r}, which are no sums of metrics'
            ) from None
        return found


class StepQueue:
    """The training steps that the device has not finished, and the summed metrics of finished steps since the last
    `take_interval`.

    Args:
        max_skipped_in_row: number of consecutive skipped steps after which a run is stopped.
        interval: sums from steps before the first step of this queue.
        clock: seconds since any fixed moment.
    """

    def __init__(
        self,
        max_skipped_in_row: int,
        interval: MetricsInterval | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_skipped_in_row = max_skipped_in_row
        self.step_seconds = math.inf  # duration of the last step whose begin and end the host has observed
        self._clock = clock
        # end time of the last finished step; None if the host did not wait for that step
        self._ended: float | None = None
        self.newest: Any = None  # (batch, state) of the newest step: its input batch and the state that it returned
        # Each entry is (step, metrics, the step's begin time if the device was idle then).
        self.running: deque[tuple[int, dict[str, jax.Array], float | None]] = deque()
        self.interval = interval or MetricsInterval()
        # (step, reason) of each step skipped since the last `take_skipped_steps`
        self.skipped: list[tuple[int, str]] = []

    @property
    def is_idle(self) -> bool:
        """Whether the device has finished all steps, so that it has nothing to do."""
        return not self.running or self.running[-1][1]['loss'].is_ready()  # type: ignore[attr-defined]

    def push(self, step: int, metrics: dict[str, jax.Array], batch: Batch, state: TrainState) -> None:
        """Adds a training step that the device has started. Waits for the oldest steps if too many are queued.

        Raises:
            NonFiniteTrainingError: `max_skipped_in_row` steps in a row were skipped, or a state is not finite.
        """
        self.running.append((step, metrics, self._clock() if self.is_idle else None))
        self.newest = batch, state
        while len(self.running) > self._max_queued_steps():
            self._finish_oldest()

    def _max_queued_steps(self) -> int:
        """Returns how many steps may be queued on the device behind the running step."""
        return min(RUN_AHEAD, int(QUEUED_SECONDS / max(self.step_seconds, 1e-6)))

    def finish_all_steps(self) -> MetricsInterval:
        """Waits until the device has finished all steps; returns the summed metrics of the steps since the last
        `take_interval`.

        Raises:
            NonFiniteTrainingError: as `push`.
        """
        while self.running:
            self._finish_oldest()
        return self.interval

    def take_interval(self) -> MetricsInterval:
        """Waits until the device has finished all steps and returns their summed metrics; then starts a new interval
        with empty sums.
        """
        found, self.interval = self.finish_all_steps(), MetricsInterval()
        return found

    def take_skipped_steps(self) -> list[tuple[int, str]]:
        """Returns (step, reason) for each step that was skipped since the last call of this method."""
        skipped, self.skipped = self.skipped, []
        return skipped

    def _finish_oldest(self) -> None:
        step, metrics, begun = self.running.popleft()
        is_late = metrics['loss'].is_ready()  # type: ignore[attr-defined]  # if so, its end time is unknown
        values = {name: float(value) for name, value in metrics.items()}
        begun = self._ended if begun is None else begun
        self._ended = None if is_late else self._clock()
        if begun is not None and self._ended is not None:
            self.step_seconds = self._ended - begun
        in_row, cause, is_spoiled = (values.pop(name) for name in ('skipped_in_row', 'cause', 'is_spoiled'))
        self.interval.add_step(values, is_skipped=in_row > 0)
        if is_spoiled:
            # If an array is not finite, it is not finite in later steps either, so the newest state is sufficient.
            check_state_finite(step, self.newest[1])
        if in_row > 0:
            self.skipped.append((step, self._skip_reason(int(cause), values)))
        if in_row >= self.max_skipped_in_row:
            raise NonFiniteTrainingError(
                f'stopped at step {step}: {int(in_row)} steps in a row were skipped (train.max_skipped_in_row), the '
                f'last as {self.skipped[-1][1]}; lower optimizer.learning_rate or look at the data of these steps'
            )

    def _skip_reason(self, cause: int, values: dict[str, float]) -> str:
        """Returns a short text that says which array of a skipped step is not finite."""
        has_loss = math.isfinite(values['loss'])
        if cause == NOWHERE:
            return "the gradient's norm is not finite" if has_loss else 'its loss is not finite'
        name = step_array_names(*self.newest)[cause]
        # If the loss is not finite, a non-finite gradient is only its consequence, so the message names both.
        is_late = name.startswith('gradient/') and not has_loss
        return f'its loss and {name} are not finite' if is_late else f'{name} is not finite'
