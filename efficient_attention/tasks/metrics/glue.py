"""The official metrics of classes and numbers, on NumPy vectors.

All are fractions or correlations, not percent. Where a formula divides by zero the value is 0: F1 of a class that is
neither there nor predicted, Matthews and the correlations where one side is constant (scikit-learn says the same of the
first two, SciPy says nan of the correlations).
"""

from collections.abc import Callable

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(expected: np.ndarray, predicted: np.ndarray) -> float:
    """The share of equal entries; 0 of none."""
    return float(np.mean(expected == predicted)) if len(expected) else 0.0


def f1_binary(expected: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1, 2 TP / (2 TP + FP + FN), as MRPC and QQP ask for it."""
    return _f1(expected == 1, predicted == 1)


def f1_macro(expected: np.ndarray, predicted: np.ndarray) -> float:
    """The mean of the F1 of each class that occurs on either side."""
    classes = np.union1d(expected, predicted)
    return float(np.mean([_f1(expected == one, predicted == one) for one in classes])) if len(classes) else 0.0


def matthews(expected: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews' correlation of any number of classes (Gorodkin 2004, R_K): the correlation of the one-hot rows."""
    classes = np.union1d(expected, predicted)
    left = (expected[:, None] == classes).astype(np.float64)
    right = (predicted[:, None] == classes).astype(np.float64)
    return _correlation(left, right)


def pearson(expected: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson's correlation; 0 where one side is constant."""
    return _correlation(expected.astype(np.float64)[:, None], predicted.astype(np.float64)[:, None])


def spearman(expected: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson's correlation of the ranks, ties sharing the mean of theirs; 0 where one side is constant."""
    return pearson(_ranks(expected), _ranks(predicted))


def mean_squared_error(expected: np.ndarray, predicted: np.ndarray) -> float:
    """The mean of the squared differences; 0 of none."""
    return float(np.mean((expected.astype(np.float64) - predicted) ** 2)) if len(expected) else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _f1(expected: np.ndarray, predicted: np.ndarray) -> float:
    errors = np.sum(expected != predicted)
    hits = 2 * np.sum(expected & predicted)
    return float(hits / (hits + errors)) if hits else 0.0


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    # A constant is found before the mean is taken away: rounding leaves dust of it, and dust correlates with anything.
    if not len(left) or np.all(left == left[0]) or np.all(right == right[0]):
        return 0.0
    left, right = left - left.mean(axis=0), right - right.mean(axis=0)
    left_norm, right_norm = np.linalg.norm(left), np.linalg.norm(right)
    if not left_norm or not right_norm:
        return 0.0
    return float(np.clip(np.sum(left / left_norm * (right / right_norm)), -1, 1))


METRICS: dict[str, Metric] = {
    'accuracy': accuracy,
    'f1': f1_binary,
    'f1_macro': f1_macro,
    'matthews': matthews,
    'pearson': pearson,
    'spearman': spearman,
    'mean_squared_error': mean_squared_error,
}
