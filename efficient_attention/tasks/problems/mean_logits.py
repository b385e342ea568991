"""Averages the outputs of an example that has several rows."""

from collections.abc import Sequence

import numpy as np

from efficient_attention.tasks.problems.problem import Feature, Outputs


def mean_logits(examples: int, features: Sequence[Feature], outputs: Sequence[Outputs]) -> list[np.ndarray | None]:
    """For each example the mean of its rows' logits, float64; None for one without rows, which was left out."""
    sums: list[np.ndarray | None] = [None] * examples
    rows = np.zeros(examples, np.int64)
    for feature, output in zip(features, outputs, strict=True):
        index, logits = int(feature['example']), output['logits'].astype(np.float64)
        before = sums[index]
        sums[index] = logits if before is None else before + logits
        rows[index] += 1
    return [None if total is None else total / count for total, count in zip(sums, rows, strict=True)]
