"""Tests that the outputs of an example's rows are averaged."""

import numpy as np

from efficient_attention.tasks.problems.problem import mean_logits


def test_rows_of_an_example_are_averaged_in_any_order():
    logits = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    owners = [0, 2, 2, 3, 0, 2]
    features = [{'example': np.array(owner)} for owner in owners]
    outputs = [{'logits': row} for row in logits]
    means = mean_logits(5, features, outputs)
    assert means[1] is None and means[4] is None
    for example in (0, 2, 3):
        expected = np.mean([row for row, owner in zip(logits, owners, strict=True) if owner == example], axis=0)
        np.testing.assert_allclose(means[example], expected, atol=1e-6)
    again = mean_logits(5, features[::-1], outputs[::-1])
    np.testing.assert_allclose(again[2], means[2], atol=1e-12)
