"""Tests how many steps the host runs ahead, the means of an interval, and when a run is given up."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from efficient_attention.training.state import NonFiniteTrainingError, initial_state
from efficient_attention.training.step_queue import QUEUED_SECONDS, StepQueue


class Later:
    """A scalar that the device is still computing; reading it counts as waiting."""

    def __init__(self, value: float, waited: list[float]) -> None:
        self.value, self.waited = value, waited

    def is_ready(self) -> bool:
        return self.value in self.waited

    def __float__(self) -> float:
        self.waited.append(self.value)
        return self.value


BATCH = {'tokens': jnp.ones(2, jnp.int32), 'weights': jnp.ones(2)}
STATE = initial_state({'x': jnp.ones(2)}, optax.adam(1e-3), seed=0)
CAUSES = ('batch/weights', 'gradient/x')


def metrics(loss: float, skipped: int = 0, in_row: int = 0, *, cause: str = '', is_spoiled: bool = False) -> dict:
    counters = {'loss': jnp.float32(loss), 'skipped': jnp.int32(skipped), 'skipped_in_row': jnp.int32(in_row)}
    place = CAUSES.index(cause) if cause else -1
    return counters | {'cause': jnp.int32(place), 'is_spoiled': jnp.bool_(is_spoiled)}


def later(value: float, waited: list[float]) -> dict:
    counters = {'skipped': 0, 'skipped_in_row': 0, 'cause': -1, 'is_spoiled': False}
    return {'loss': Later(value, waited)} | counters


def means_and_steps(queue: StepQueue) -> tuple[dict, int]:
    interval = queue.take_interval()
    return interval.mean_metrics(), interval.steps


def test_means_since_the_last_call_and_how_many_steps_they_are():
    queue = StepQueue(max_skipped_in_row=3)
    for step, loss in enumerate((4.0, 2.0, 3.0), start=1):
        queue.push(step, metrics(loss), BATCH, STATE)
    assert means_and_steps(queue) == ({'loss': 3.0, 'skipped': 0}, 3)
    queue.push(4, metrics(7.0), BATCH, STATE)
    assert means_and_steps(queue) == ({'loss': 7.0, 'skipped': 0}, 1)
    assert means_and_steps(queue) == ({}, 0)


def test_skipped_steps_are_counted_so_far():
    queue = StepQueue(max_skipped_in_row=3)
    for step, skipped, in_row in ((1, 5, 1), (2, 6, 2), (3, 6, 0)):
        queue.push(step, metrics(float(step), skipped, in_row), BATCH, STATE)
    assert queue.take_interval().mean_metrics()['skipped'] == 6


class Device:
    """A device that takes `seconds` for each step, one after another; waiting for a step moves its clock to the step's
    end.
    """

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.free, self.waited = 0.0, seconds, 0.0, []

    def clock(self) -> float:
        return self.now

    def take(self, step: int) -> dict:
        """Returns the metrics of a step that begins now, or when the previous step has ended."""
        self.free = max(self.now, self.free) + self.seconds
        return later(float(step), self.waited) | {'loss': Ending(step, self.free, self)}


class Ending:
    """A loss that is ready from a given time of the device's clock on."""

    def __init__(self, step: int, end: float, device: Device) -> None:
        self.step, self.end, self.device = step, end, device

    def is_ready(self) -> bool:
        return self.end <= self.device.now

    def __float__(self) -> float:
        self.device.now = max(self.device.now, self.end)
        self.device.waited.append(self.step)
        return float(self.step)


def behind(seconds: float, host_seconds: float = 0.0) -> tuple[list[int], StepQueue, Device]:
    """Pushes eight steps of this duration; returns how many were still running after each push, the queue and the
    device.
    """
    device, left = Device(seconds), []
    queue = StepQueue(max_skipped_in_row=3, clock=device.clock)
    assert queue.is_idle
    for step in range(1, 9):
        device.now += host_seconds
        queue.push(step, device.take(step), BATCH, STATE)
        left.append(len(queue.running))
    return left, queue, device


@pytest.mark.parametrize(
    'seconds, most', [(0.001, 2), (0.9, 2), (1.1, 1), (2.0, 1), (2.1, 0), (60.0, 0)], ids=lambda value: str(value)
)
def test_the_host_runs_ahead_by_few_steps_and_by_none_of_long_ones(seconds: float, most: int):
    left, queue, device = behind(seconds)
    # the first step is waited for, because it shows how long steps take
    assert left == [0, *(min(step, most) for step in range(1, 8))]
    assert queue.step_seconds == pytest.approx(seconds) and most * seconds <= QUEUED_SECONDS
    assert device.waited == list(range(1, 9 - most))
    queue.take_interval()
    assert device.waited == list(range(1, 9)) and queue.is_idle


def test_waiting_for_the_host_is_no_part_of_a_step():
    """If input takes longer than the device, a step's end is seen late and says nothing about the step's duration."""
    left, queue, _ = behind(0.5, host_seconds=4.0)
    assert queue.step_seconds == 0.5 and max(left) == 2


def test_a_step_that_gets_longer_lets_fewer_wait_behind_it():
    left, queue, device = behind(0.5)
    device.seconds = 3.0
    for step in range(9, 14):
        queue.push(step, device.take(step), BATCH, STATE)
        left.append(len(queue.running))
    assert left[7] == 2 and left[-1] == 0


def test_idle_once_the_newest_step_is_ready():
    queue = StepQueue(max_skipped_in_row=3)
    queue.push(1, later(1.0, [1.0]), BATCH, STATE)
    assert queue.is_idle


def test_too_many_skipped_steps_in_a_row_stop_the_run_and_name_the_step():
    queue = StepQueue(max_skipped_in_row=2)
    queue.push(11, metrics(np.nan, 4, 1), BATCH, STATE)
    queue.push(12, metrics(1.0, 4, 0), BATCH, STATE)
    queue.push(13, metrics(np.nan, 5, 1), BATCH, STATE)
    message = r'^stopped at step 14: 2 steps in a row .*\(train\.max_skipped_in_row\)'
    with pytest.raises(NonFiniteTrainingError, match=message) as caught:
        queue.push(14, metrics(np.nan, 6, 2), BATCH, STATE)
    assert '\n' not in str(caught.value)


def test_the_run_also_stops_between_two_logs():
    queue = StepQueue(max_skipped_in_row=1)
    with pytest.raises(NonFiniteTrainingError, match='stopped at step 1'):
        for step in range(1, 10):
            queue.push(step, metrics(np.nan, step, step), BATCH, STATE)
    assert step == 1  # its metrics were ready at once


def test_a_skipped_step_comes_with_what_was_not_finite():
    queue = StepQueue(max_skipped_in_row=9)
    cases = [(np.nan, 'batch/weights'), (np.nan, 'gradient/x'), (1.0, 'gradient/x'), (1.0, ''), (np.inf, '')]
    for step, (loss, cause) in enumerate(cases, 1):
        queue.push(step, metrics(loss, step, step, cause=cause), BATCH, STATE)
    queue.push(6, metrics(1.0), BATCH, STATE)
    queue.take_interval()
    assert queue.take_skipped_steps() == [
        (1, 'batch/weights is not finite'),
        (2, 'its loss and gradient/x are not finite'),
        (3, 'gradient/x is not finite'),
        (4, "the gradient's norm is not finite"),
        (5, 'its loss is not finite'),
    ]
    assert queue.take_skipped_steps() == []


def test_a_spoiled_state_stops_the_run_and_its_first_bad_array_is_named():
    queue = StepQueue(max_skipped_in_row=9)
    moments, *rest = STATE.opt_state
    moments = moments._replace(nu={'x': jnp.array([1.0, jnp.inf])})
    spoiled = dataclasses.replace(STATE, opt_state=(moments, *rest))
    with pytest.raises(
        NonFiniteTrainingError, match=r'^stopped at step 3: optimizer/nu/x is not finite; nothing of it is '
    ):
        queue.push(3, metrics(1.0, is_spoiled=True), BATCH, spoiled)
