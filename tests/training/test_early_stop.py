"""Tests when a run ends because its metric no longer improves, also across a restart."""

import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.training.early_stop import Patience

BEST = CheckpointConfig(best_metric='f1', best_mode='max')


def after(values: list[float], evaluations: int, mode: str = 'max') -> Patience:
    config = CheckpointConfig(best_metric='f1', best_mode=mode)
    return Patience(evaluations, config, [{'f1': value} for value in values])


@pytest.mark.parametrize(
    'values, evaluations, mode, is_over',
    [
        ([0.1, 0.2, 0.2], 2, 'max', False),
        ([0.1, 0.2, 0.2, 0.1], 2, 'max', True),
        ([0.1, 0.2, 0.1, 0.3], 2, 'max', False),
        ([0.3, 0.2, 0.1], 2, 'min', False),
        ([0.1, 0.2, 0.3], 2, 'min', True),
        ([0.3, 0.2, 0.1, 0.0], 0, 'max', False),
        ([float('nan'), float('nan')], 2, 'max', True),
        ([], 1, 'max', False),
    ],
)
def test_evaluations_without_a_better_value(values: list, evaluations: int, mode: str, is_over: bool):
    assert after(values, evaluations, mode).is_patience_exhausted is is_over


def test_earlier_evaluations_count_as_if_there_was_no_restart():
    resumed, whole = after([0.5, 0.4], 3), after([0.5, 0.4, 0.3], 3)
    resumed.add_evaluation({'f1': 0.3})
    assert resumed.is_patience_exhausted == whole.is_patience_exhausted
    resumed.add_evaluation({'f1': 0.2})
    assert (
        resumed.is_patience_exhausted and resumed.describe_early_stop() == '3 evaluations without a better f1 than 0.5'
    )


def test_a_metric_that_is_missing_is_no_better():
    patience = Patience(1, BEST, [{'f1': 0.1}])
    patience.add_evaluation({'loss': 0.0})
    assert patience.is_patience_exhausted


def test_the_last_evaluation_may_be_the_best_so_far():
    patience = Patience(0, BEST)
    found = []
    for value in (0.1, 0.3, 0.2, 0.3, 0.4):
        patience.add_evaluation({'f1': value})
        found.append(patience.is_best)
    assert found == [True, True, False, False, True]


def test_evaluations_before_the_last_pruning_neither_count_nor_are_the_best():
    patience = Patience(2, BEST, [{'f1': 0.9, 'still_pruning': 1.0}])
    for value in (0.9, 0.8, 0.7):
        patience.add_evaluation({'f1': value, 'still_pruning': 1.0})
        assert not patience.is_best and not patience.is_patience_exhausted
    patience.add_evaluation({'f1': 0.3})
    assert patience.is_best
    patience.add_evaluation({'f1': 0.2})
    patience.add_evaluation({'f1': 0.1})
    assert (
        patience.is_patience_exhausted
        and patience.describe_early_stop() == '2 evaluations without a better f1 than 0.3'
    )
