"""Tests of GLUE metrics against scikit-learn and their definitions, and of division by zero."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from efficient_attention.tasks.metrics.glue import (
    METRICS,
    accuracy,
    f1_binary,
    f1_macro,
    matthews,
    mean_squared_error,
    pearson,
    spearman,
)


def assert_equal(actual, expected):
    assert isinstance(actual, float)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize('classes', [2, 3, 7])
@pytest.mark.parametrize('seed', range(20))
def test_classes_against_scikit_learn(classes, seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 300))
    expected, noise = rng.integers(0, classes, size), rng.integers(0, classes, size)
    predicted = np.where(rng.random(size) < rng.random(), expected, noise)
    assert_equal(accuracy(expected, predicted), sklearn_metrics.accuracy_score(expected, predicted))
    assert_equal(matthews(expected, predicted), sklearn_metrics.matthews_corrcoef(expected, predicted))
    macro = sklearn_metrics.f1_score(expected, predicted, average='macro', zero_division=0)
    assert_equal(f1_macro(expected, predicted), macro)
    if classes == 2:
        assert_equal(f1_binary(expected, predicted), sklearn_metrics.f1_score(expected, predicted, zero_division=0))


def ranks(values):
    """Returns each value's rank: the number of smaller values plus half the number of equal values."""
    return np.sum(values[:, None] > values, axis=1) + np.sum(values[:, None] == values, axis=1) / 2


@pytest.mark.parametrize('has_ties', [False, True])
@pytest.mark.parametrize('seed', range(20))
def test_numbers_against_their_definitions(seed, has_ties):
    rng = np.random.default_rng(seed)
    expected = rng.uniform(0, 5, int(rng.integers(3, 300)))
    predicted = expected * rng.normal() + rng.normal(size=expected.size) + 1000
    if has_ties:
        expected, predicted = np.round(expected), np.round(predicted)
    assert_equal(pearson(expected, predicted), np.corrcoef(expected, predicted)[0, 1])
    assert_equal(spearman(expected, predicted), np.corrcoef(ranks(expected), ranks(predicted))[0, 1])
    assert_equal(mean_squared_error(expected, predicted), sklearn_metrics.mean_squared_error(expected, predicted))


@pytest.mark.parametrize('name', METRICS)
@pytest.mark.parametrize('size', [0, 1, 5])
def test_nothing_to_divide_by_is_zero(name, size):
    ones = np.ones(size, np.int64)
    wrong = METRICS[name](ones * 0, ones)
    assert wrong == (1 if name == 'mean_squared_error' and size else 0)


@pytest.mark.parametrize('value', [0.1, 1 / 3, 1e9])
def test_a_constant_has_no_correlation(value):
    ramp = np.arange(7.0)
    for metric in (pearson, spearman):
        assert metric(ramp, np.full(7, value)) == metric(np.full(7, value), ramp) == 0


@pytest.mark.parametrize('name', ['accuracy', 'f1', 'f1_macro', 'matthews', 'pearson', 'spearman'])
def test_what_is_right_is_one(name):
    vector = np.array([0, 1, 1, 0, 1])
    assert METRICS[name](vector, vector) == pytest.approx(1, abs=1e-12)


def test_the_order_of_examples_does_not_count():
    rng = np.random.default_rng(0)
    expected, predicted, order = rng.integers(0, 2, 50), rng.integers(0, 2, 50), rng.permutation(50)
    for metric in METRICS.values():
        assert_equal(metric(expected, predicted), metric(expected[order], predicted[order]))
