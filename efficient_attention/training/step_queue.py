"""The steps that the host has handed to the device, and the metrics of those that are finished."""

from collections import deque

import jax
import numpy as np

from efficient_attention.errors import RunError

RUN_AHEAD = 2  # steps handed to the device before the host waits for the oldest of them


class TrainingStopped(RunError):
    """Too many steps in a row changed nothing; names the step."""


class StepQueue:
    """The steps that the device has not finished, and the metrics of those since the last `take`."""

    def __init__(self, max_skipped_in_row: int) -> None:
        self.max_skipped_in_row = max_skipped_in_row
        self.running: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self.finished: list[dict[str, float]] = []
        self.skipped: list[int] = []  # steps that were skipped since the last `take_skipped`

    @property
    def is_idle(self) -> bool:
        """Whether the device has nothing left to do."""
        return not self.running or self.running[-1][1]['loss'].is_ready()  # type: ignore[attr-defined]

    def push(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Adds a step that the device has been given; waits for older ones as `RUN_AHEAD` asks.

        Raises:
            TrainingStopped: `max_skipped_in_row` steps in a row were skipped.
        """
        self.running.append((step, metrics))
        while len(self.running) > RUN_AHEAD:
            self._finish_oldest()

    def take(self) -> tuple[dict[str, float], int]:
        """Waits for all steps; the means of their metrics since the last call, and how many steps they are.

        'skipped' is the count so far, not a mean. Means leave out the steps that were skipped, unless all were.

        Raises:
            TrainingStopped: as `push`.
        """
        while self.running:
            self._finish_oldest()
        steps, self.finished = self.finished, []
        counted = [metrics for metrics in steps if not metrics['is_skipped']] or steps
        names = [name for name in (steps[0] if steps else ()) if name != 'is_skipped']
        means = {name: float(np.mean([metrics[name] for metrics in counted])) for name in names}
        return means | ({'skipped': int(steps[-1]['skipped'])} if steps else {}), len(steps)

    def take_skipped(self) -> list[int]:
        """The steps that were found skipped since the last call."""
        skipped, self.skipped = self.skipped, []
        return skipped

    def _finish_oldest(self) -> None:
        step, metrics = self.running.popleft()
        values = {name: float(value) for name, value in metrics.items()}
        in_row = values.pop('skipped_in_row')
        self.finished.append(values | {'is_skipped': in_row > 0})
        if in_row > 0:
            self.skipped.append(step)
        if in_row >= self.max_skipped_in_row:
            raise TrainingStopped(
                f'stopped at step {step}: {int(in_row)} steps in a row had a loss or gradient that is not finite '
                '(train.max_skipped_in_row); lower optimizer.learning_rate or look at the data of these steps'
            )
