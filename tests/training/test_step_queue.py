"""How far the host runs ahead, what an interval's means are, and when a run is given up."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.training.step_queue import RUN_AHEAD, StepQueue, TrainingStopped


class Later:
    """A scalar that the device is still working on; reading it counts as waiting."""

    def __init__(self, value: float, waited: list[float]) -> None:
        self.value, self.waited = value, waited

    def is_ready(self) -> bool:
        return self.value in self.waited

    def __float__(self) -> float:
        self.waited.append(self.value)
        return self.value


def metrics(loss: float, skipped: int = 0, in_row: int = 0) -> dict:
    return {'loss': jnp.float32(loss), 'skipped': jnp.int32(skipped), 'skipped_in_row': jnp.int32(in_row)}


def test_means_since_the_last_call_and_how_many_steps_they_are():
    queue = StepQueue(max_skipped_in_row=3)
    for step, loss in enumerate((4.0, 2.0, 3.0), start=1):
        queue.push(step, metrics(loss))
    assert queue.take() == ({'loss': 3.0, 'skipped': 0}, 3)
    queue.push(4, metrics(7.0))
    assert queue.take() == ({'loss': 7.0, 'skipped': 0}, 1)
    assert queue.take() == ({}, 0)


def test_skipped_steps_are_counted_so_far():
    queue = StepQueue(max_skipped_in_row=3)
    for step, skipped, in_row in ((1, 5, 1), (2, 6, 2), (3, 6, 0)):
        queue.push(step, metrics(float(step), skipped, in_row))
    assert queue.take()[0]['skipped'] == 6


def test_the_host_waits_for_the_oldest_step_once_it_is_far_enough_ahead():
    waited: list[float] = []
    queue = StepQueue(max_skipped_in_row=3)
    assert queue.is_idle
    for step in range(1, RUN_AHEAD + 3):
        queue.push(step, {'loss': Later(float(step), waited), 'skipped': 0, 'skipped_in_row': 0})
        assert waited == list(range(1, step - RUN_AHEAD + 1))
        assert not queue.is_idle
    queue.take()
    assert waited == list(range(1, RUN_AHEAD + 3))
    assert queue.is_idle


def test_idle_once_the_newest_step_is_ready():
    queue = StepQueue(max_skipped_in_row=3)
    queue.push(1, {'loss': Later(1.0, waited=[1.0]), 'skipped': 0, 'skipped_in_row': 0})
    assert queue.is_idle


def test_too_many_skipped_steps_in_a_row_stop_the_run_and_name_the_step():
    queue = StepQueue(max_skipped_in_row=2)
    queue.push(11, metrics(np.nan, 4, 1))
    queue.push(12, metrics(1.0, 4, 0))
    queue.push(13, metrics(np.nan, 5, 1))
    queue.push(14, metrics(np.nan, 6, 2))
    message = r'^stopped at step 14: 2 steps in a row .*\(train\.max_skipped_in_row\)'
    with pytest.raises(TrainingStopped, match=message) as caught:
        queue.take()
    assert '\n' not in str(caught.value)


def test_the_run_also_stops_between_two_logs():
    queue = StepQueue(max_skipped_in_row=1)
    with pytest.raises(TrainingStopped, match='stopped at step 1'):
        for step in range(1, 10):
            queue.push(step, metrics(np.nan, step, step))
    assert step == 1 + RUN_AHEAD
