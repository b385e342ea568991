"""Tests means over the steps between two lines of the log, also if a checkpoint comes between them."""

import json
import math

import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.training.step_queue import MetricsInterval


def interval_of(
    losses: list[float], skipped: tuple[int, ...] = (), start: MetricsInterval | None = None
) -> MetricsInterval:
    interval = start or MetricsInterval()
    for step, loss in enumerate(losses):
        so_far = interval.skipped + (step in skipped)
        interval.add_step({'loss': loss, 'grad_norm': 2 * loss, 'skipped': so_far}, is_skipped=step in skipped)
    return interval


def through_json(interval: MetricsInterval) -> MetricsInterval:
    return MetricsInterval.from_json(json.loads(json.dumps(interval.as_json(), allow_nan=False)))


def test_means_are_of_the_steps_that_were_not_skipped():
    assert interval_of([1.0, math.nan, 4.0], (1,)).mean_metrics() == {'loss': 2.5, 'grad_norm': 5.0, 'skipped': 1}
    assert interval_of([math.inf, 3.0], (0,)).mean_metrics() == {'loss': 3.0, 'grad_norm': 6.0, 'skipped': 1}
    assert interval_of([2.0, 4.0], (0, 1)).mean_metrics() == {'loss': 3.0, 'grad_norm': 6.0, 'skipped': 2}
    assert MetricsInterval().mean_metrics() == {}


@pytest.mark.parametrize('skipped', [(), (0,), (0, 1, 2), (6,)])
@pytest.mark.parametrize('cut', [0, 1, 3, 7])
def test_a_checkpoint_within_an_interval_does_not_change_its_means(cut: int, skipped: tuple[int, ...]):
    losses = np.random.default_rng(0).standard_normal(7).tolist()
    whole = interval_of(losses, skipped)
    first = interval_of(losses[:cut], skipped)
    found = interval_of(losses[cut:], tuple(step - cut for step in skipped), through_json(first))
    assert found.mean_metrics() == whole.mean_metrics() and found.steps == whole.steps == 7
    assert list(found.mean_metrics()) == list(whole.mean_metrics()) == ['loss', 'grad_norm', 'skipped']


def test_sums_that_are_not_finite_go_through_a_checkpoint():
    means = through_json(interval_of([math.nan, math.inf], (0, 1))).mean_metrics()
    assert math.isnan(means['loss']) and means['skipped'] == 2
    assert through_json(interval_of([math.inf], (0,))).mean_metrics()['loss'] == math.inf


GOOD = interval_of([1.0]).as_json()


@pytest.mark.parametrize(
    'saved', [3, {}, GOOD | {'steps': 'many'}, GOOD | {'sums': [1.0]}, GOOD | {'sums': [['loss', []]]}]
)
def test_what_is_no_interval_is_refused(saved: object):
    with pytest.raises(InputError, match='which are no sums of metrics'):
        MetricsInterval.from_json(saved)
