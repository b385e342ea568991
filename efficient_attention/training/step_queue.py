"""The steps that the host has handed to the device, and the metrics of those that are finished."""

import math
from collections import deque
from typing import Any

import jax

from efficient_attention.objectives.objective import Batch
from efficient_attention.training.finite import NOWHERE, TrainingStopped, check_state, step_names
from efficient_attention.training.interval import Interval
from efficient_attention.training.state import TrainState

RUN_AHEAD = 2  # steps handed to the device before the host waits for the oldest of them


class StepQueue:
    """The steps that the device has not finished, and the metrics of those since the last `take`.

    Args:
        max_skipped_in_row: steps after which a run is given up.
        interval: what steps before the first of this queue have added to it.
    """

    def __init__(self, max_skipped_in_row: int, interval: Interval | None = None) -> None:
        self.max_skipped_in_row = max_skipped_in_row
        self.newest: Any = None  # (batch, state): what the newest step read and gave
        self.running: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self.interval = interval or Interval()
        self.skipped: list[tuple[int, str]] = []  # steps that were skipped since the last `take_skipped`, and why

    @property
    def is_idle(self) -> bool:
        """Whether the device has nothing left to do."""
        return not self.running or self.running[-1][1]['loss'].is_ready()  # type: ignore[attr-defined]

    def push(self, step: int, metrics: dict[str, jax.Array], batch: Batch, state: TrainState) -> None:
        """Adds a step that the device has been given; waits for older ones as `RUN_AHEAD` asks.

        Raises:
            TrainingStopped: `max_skipped_in_row` steps in a row were skipped, or the state of one is not finite.
        """
        self.running.append((step, metrics))
        self.newest = batch, state
        while len(self.running) > RUN_AHEAD:
            self._finish_oldest()

    def finished(self) -> Interval:
        """Waits for all steps; those since the last `take`.

        Raises:
            TrainingStopped: as `push`.
        """
        while self.running:
            self._finish_oldest()
        return self.interval

    def take(self) -> Interval:
        """As `finished`; the next one begins here."""
        found, self.interval = self.finished(), Interval()
        return found

    def take_skipped(self) -> list[tuple[int, str]]:
        """The steps that were found skipped since the last call, each with what was not finite."""
        skipped, self.skipped = self.skipped, []
        return skipped

    def _finish_oldest(self) -> None:
        step, metrics = self.running.popleft()
        values = {name: float(value) for name, value in metrics.items()}
        in_row, cause, is_spoiled = (values.pop(name) for name in ('skipped_in_row', 'cause', 'is_spoiled'))
        self.interval.add(values, is_skipped=in_row > 0)
        if is_spoiled:
            check_state(step, self.newest[1])  # what is not finite stays so in later steps
        if in_row > 0:
            self.skipped.append((step, self._reason(int(cause), values)))
        if in_row >= self.max_skipped_in_row:
            raise TrainingStopped(
                f'stopped at step {step}: {int(in_row)} steps in a row were skipped (train.max_skipped_in_row), the '
                f'last as {self.skipped[-1][1]}; lower optimizer.learning_rate or look at the data of these steps'
            )

    def _reason(self, cause: int, values: dict[str, float]) -> str:
        """What of a skipped step is not finite, in a few words."""
        has_loss = math.isfinite(values['loss'])
        if cause == NOWHERE:
            return "the gradient's norm is not finite" if has_loss else 'its loss is not finite'
        name = step_names(*self.newest)[cause]
        is_late = name.startswith('gradient/') and not has_loss  # no more than what the loss has spoiled
        return f'its loss and {name} are not finite' if is_late else f'{name} is not finite'
