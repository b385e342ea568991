"""Tests the cubic pruning schedule at its corner steps and against Optax's schedule."""

import numpy as np
import optax
import pytest

from efficient_attention.config.prune import PruneConfig
from efficient_attention.pruning.pruner import schedule_progress


def test_it_is_the_cubic_of_optax_in_shares_of_the_run():
    config = PruneConfig(method='magnitude', keep=0.03, begin=0.1, end=0.8)
    other = optax.polynomial_schedule(1.0, 0.03, 3, 700, 100)
    for step in (0, 99, 100, 101, 350, 799, 800, 801, 1000):
        kept = 1.0 - (1.0 - 0.03) * schedule_progress(config, 1000, step)
        np.testing.assert_allclose(kept, other(step), rtol=1e-5)


@pytest.mark.parametrize('step, done', [(0, 0.0), (4, 0.0), (5, 1.0), (10, 1.0)])
def test_a_schedule_without_length_jumps(step: int, done: float):
    assert float(schedule_progress(PruneConfig(method='magnitude', begin=0.5, end=0.5), 10, step)) == done


def test_everything_from_the_first_step():
    assert float(schedule_progress(PruneConfig(method='magnitude', begin=0.0, end=0.0), 10, 0)) == 1.0
