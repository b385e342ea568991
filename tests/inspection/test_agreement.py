"""Tests of rollout, flow and leaving tokens out on arrays of known result."""

import numpy as np
import pytest

from efficient_attention.inspection.agreement import (
    attention_flow,
    attention_rollout,
    leave_one_out,
    rank_correlation,
    raw_weights,
)

TWO = np.array([[[0.0, 1.0], [0.0, 1.0]], [[0.5, 0.5], [1.0, 0.0]]])


def test_rollout_multiplies_layers_with_residuals():
    first, second = np.array([[0.5, 0.5], [0, 1]]), np.array([[0.75, 0.25], [0.5, 0.5]])
    np.testing.assert_allclose(attention_rollout(TWO, 0), (second @ first)[0])
    np.testing.assert_allclose(attention_rollout(TWO, 1), (second @ first)[1])
    assert raw_weights(TWO, 1).tolist() == [1.0, 0.0]


def test_flow_is_the_sum_of_the_least_capacities_of_paths():
    # From token 0 of the top to token 0 of the input: only through token 0, min(0.75, 0.5).
    # To token 1: through token 0, min(0.75, 0.5), and through token 1, min(0.25, 1).
    np.testing.assert_allclose(attention_flow(TWO, 0), [0.5, 0.75], atol=1e-6)
    np.testing.assert_allclose(attention_flow(TWO[1:], 0), [0.75, 0.25], atol=1e-6)


def test_leaving_a_token_out_of_a_sum_changes_it_by_the_difference():
    ids = np.array([3, 5, 7, 2])
    assert leave_one_out(lambda rows: rows.sum(1), ids, [0, 2], 1).tolist() == [2, 6]
    vectors = leave_one_out(lambda rows: rows[:, 1:3] * np.array([3, 4]), ids, [1, 2], 4)
    assert vectors.tolist() == [3, 12]


def test_rank_correlation_has_ties_and_may_be_unknown():
    assert rank_correlation(np.array([1, 2, 3]), np.array([1, 10, 100])) == pytest.approx(1)
    assert rank_correlation(np.array([1, 1, 2]), np.array([3, 3, 1])) == pytest.approx(-1)
    assert np.isnan(rank_correlation(np.array([1, 1]), np.array([1, 2])))
