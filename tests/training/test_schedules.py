"""Tests the learning rate at each step against computed numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from efficient_attention.config.optimizer import SCHEDULES, OptimizerConfig
from efficient_attention.errors import InputError
from efficient_attention.training.schedules import make_schedule

PEAK = 2e-3


def rates(schedule: str, steps: list[int], *, total: int = 100, warmup: int = 20, **fields) -> np.ndarray:
    config = OptimizerConfig(learning_rate=PEAK, warmup_steps=warmup, schedule=schedule, **fields)
    return at(make_schedule(config, total), steps)


def at(schedule: optax.Schedule, steps: list[int], dtype: type = np.int32) -> np.ndarray:
    """Returns the learning rates of these steps, computed by one program."""
    return np.asarray(jax.jit(jax.vmap(schedule))(np.asarray(steps, dtype)))


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_the_first_update_of_a_warm_up_has_rate_zero_and_the_rise_is_linear(schedule):
    np.testing.assert_allclose(rates(schedule, [0, 1, 10, 19]), PEAK * np.array([0, 1 / 20, 0.5, 19 / 20]), rtol=1e-6)


def test_bert_counts_its_decay_from_step_0_and_drops_at_the_join():
    found = rates('bert', [19, 20, 60, 99, 100, 200])
    np.testing.assert_allclose(found, PEAK * np.array([0.95, 1 - 20 / 100, 0.4, 0.01, 0, 0]), rtol=1e-5, atol=1e-12)


def test_bert_with_the_published_numbers():
    found = rates('bert', [5_000, 9_999, 10_000, 500_000, 999_999], total=1_000_000, warmup=10_000)
    np.testing.assert_allclose(found, PEAK * np.array([0.5, 0.9999, 0.99, 0.5, 1e-6]), rtol=1e-5, atol=1e-10)


def test_linear_is_continuous_and_reaches_its_end_at_the_last_step_plus_one():
    found = rates('linear', [19, 20, 21, 60, 99, 100, 150])
    np.testing.assert_allclose(found, PEAK * np.array([0.95, 1, 79 / 80, 0.5, 1 / 80, 0, 0]), rtol=1e-5, atol=1e-12)


def test_cosine_is_half_way_down_in_the_middle():
    found = rates('cosine', [20, 40, 60, 100, 101])
    np.testing.assert_allclose(found, PEAK * np.array([1, (1 + np.sqrt(0.5)) / 2, 0.5, 0, 0]), rtol=1e-5, atol=1e-10)


def test_constant_and_rsqrt_after_the_warm_up():
    np.testing.assert_allclose(rates('constant', [20, 99, 1000]), PEAK, rtol=1e-6)
    np.testing.assert_allclose(rates('rsqrt', [20, 80, 500]), PEAK * np.array([1, 0.5, 0.2]), rtol=1e-6)


@pytest.mark.parametrize(
    'schedule, decay',
    [
        ('linear', optax.linear_schedule(PEAK, 0.1 * PEAK, 80)),
        ('cosine', optax.cosine_decay_schedule(PEAK, 80, alpha=0.1)),
        ('constant', optax.constant_schedule(PEAK)),
    ],
)
def test_what_optax_has_too_is_the_same_up_to_rounding(schedule: str, decay: optax.Schedule):
    theirs = optax.join_schedules([optax.linear_schedule(0.0, PEAK, 20), decay], [20])
    end = {} if schedule == 'constant' else {'end_learning_rate_ratio': 0.1}
    steps = list(range(105))
    np.testing.assert_allclose(rates(schedule, steps, **end), at(theirs, steps, np.float32), rtol=1e-5)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_without_a_warm_up_the_first_update_has_the_peak(schedule):
    np.testing.assert_allclose(rates(schedule, [0], warmup=0), PEAK, rtol=1e-6)


@pytest.mark.parametrize('schedule', ['bert', 'linear', 'cosine'])
def test_a_decay_ends_at_the_asked_share_of_the_peak(schedule):
    found = rates(schedule, [99, 100, 300], end_learning_rate_ratio=0.1)
    assert found[0] > found[1]
    np.testing.assert_allclose(found[1:], 0.1 * PEAK, rtol=1e-5)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_a_warm_up_longer_than_the_run_never_reaches_the_peak(schedule):
    np.testing.assert_allclose(rates(schedule, [0, 50], total=50, warmup=80), PEAK * np.array([0, 50 / 80]), rtol=1e-6)


def test_python_numbers_and_traced_counts_agree():
    schedule = make_schedule(OptimizerConfig(warmup_steps=4), 10)
    assert schedule(7).dtype == jnp.float32
    np.testing.assert_array_equal(schedule(7), jax.jit(schedule)(jnp.int32(7)))


def test_a_run_without_steps_is_refused():
    with pytest.raises(InputError, match=r'^train.steps is 0'):
        make_schedule(OptimizerConfig(), 0)
