"""Tests rates from a clock that the test sets, and the rates of a run whose input is slow."""

import time

import pytest

from efficient_attention.tasks.pretraining import PretrainingTask
from efficient_attention.training.loop import train
from efficient_attention.training.throughput import Throughput
from efficient_attention.workdir.metrics import read_metrics
from tests.training.tiny_run import tiny_config


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rates_over_an_interval(clock):
    throughput = Throughput(tokens_per_step=4096, flops_per_step=2e9, peak_flops=1e10, clock=clock)
    for _ in range(4):
        with throughput.time_data_wait():
            clock.now += 0.5
        clock.now += 1.5
    assert throughput.measure_rates(4) == {
        'steps_per_second': 0.5,
        'tokens_per_second': 2048.0,
        'waiting_share': 0.25,
        'flops_utilisation': pytest.approx(0.1),
    }


def test_each_interval_starts_anew(clock):
    throughput = Throughput(tokens_per_step=10, clock=clock)
    with throughput.time_data_wait():
        clock.now += 9
    throughput.measure_rates(1)
    clock.now += 2
    assert throughput.measure_rates(1) == {'steps_per_second': 0.5, 'tokens_per_second': 5.0, 'waiting_share': 0.0}


def test_pauses_do_not_count_even_when_they_end_in_an_error(clock):
    throughput = Throughput(tokens_per_step=10, clock=clock)
    clock.now += 1
    with pytest.raises(KeyError), throughput.pause_timing():
        clock.now += 50
        raise KeyError
    clock.now += 1
    assert throughput.measure_rates(4)['steps_per_second'] == 2.0


@pytest.mark.parametrize('known', [{'flops_per_step': 1e9}, {'peak_flops': 1e9}, {}])
def test_without_both_figures_the_use_of_the_device_is_not_given(clock, known):
    throughput = Throughput(tokens_per_step=10, clock=clock, **known)
    clock.now += 1
    assert 'flops_utilisation' not in throughput.measure_rates(1)


def test_waiting_counts_only_if_the_device_is_idle_at_its_end(clock):
    throughput = Throughput(tokens_per_step=10, clock=clock)
    for is_idle in (True, False):
        with throughput.time_data_wait(lambda is_idle=is_idle: is_idle):
            clock.now += 2
    assert throughput.measure_rates(1)['waiting_share'] == 0.5


def test_a_step_before_the_interval_has_no_share_in_its_rate(clock):
    throughput = Throughput(tokens_per_step=10, clock=clock)
    throughput.restart(untimed=1)
    clock.now += 2
    assert throughput.measure_rates(3)['steps_per_second'] == 1.0
    throughput.restart(untimed=1)
    assert throughput.measure_rates(1) == {}
    clock.now += 2
    assert throughput.measure_rates(1)['steps_per_second'] == 0.5


class SlowInput:
    """Yields batches that each take longer than a step."""

    def __init__(self, batches, seconds: float) -> None:
        self.batches, self.seconds = batches, seconds

    def __next__(self) -> dict:
        time.sleep(self.seconds)
        return next(self.batches)

    def __iter__(self):
        return self


@pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts, which strict promotion refuses
def test_most_of_the_time_is_waiting_when_the_input_is_slow(tmp_path, monkeypatch):
    original = PretrainingTask.training_batches
    monkeypatch.setattr(PretrainingTask, 'training_batches', lambda *a: SlowInput(original(*a), 0.6))
    fields = {'train.steps': 4, 'train.log_every_steps': 4, 'eval.every_steps': 4, 'checkpoint.every_steps': 4}
    train(tiny_config(tmp_path, **fields), tmp_path / 'run')
    (line,) = (line for line in read_metrics(tmp_path / 'run') if line['split'] == 'train')
    assert line['waiting_share'] > 0.6  # the share is about 0.9 on an idle machine
