"""Tests that landmarks are means of nearly equal numbers of neighbours, and that the inverse is computed for each
matrix.
"""

import jax
import numpy as np
import pytest

from efficient_attention.attention.nystrom.definition import iterated_pseudo_inverse, segment_means
from tests.attention import contract_rows
from tests.tolerances import assert_close

landmarks_of = jax.jit(segment_means, static_argnums=2)
inverse_of = jax.jit(iterated_pseudo_inverse, static_argnums=1)


@pytest.mark.parametrize('count', [1, 3, 4, 12, 20])
def test_means_are_those_of_the_valid_tokens_in_order(count: int):
    rng = np.random.default_rng(0)
    x, valid = rng.normal(size=(3, 12, 2, 5)).astype(np.float32), rng.random((3, 12)) < 0.7
    valid[2] = False
    means, is_there = jax.device_get(landmarks_of(x, valid, count))
    for row in range(3):
        expected = contract_rows.landmarks(x[row], valid[row], count)
        assert [one is not None for one in expected] == list(np.asarray(is_there[row, 0]))
        zeros = np.zeros((2, 5))
        assert_close(means[row].swapaxes(0, 1), np.stack([zeros if one is None else one for one in expected]))
    whole, _ = landmarks_of(x, None, count)
    assert_close(whole, landmarks_of(x, np.ones((3, 12), bool), count)[0])


def test_an_inverse_depends_on_no_other_matrix():
    rng = np.random.default_rng(1)
    matrices = rng.dirichlet(np.ones(6), (2, 3, 6)).astype(np.float32)
    found = np.asarray(inverse_of(matrices, 6))
    alone = inverse_of(matrices[:1, :1], 6)
    np.testing.assert_allclose(found[:1, :1], alone, rtol=1e-5, atol=1e-5)
    expected = contract_rows.iterated_inverse(np.asarray(matrices[1, 2], np.float64), 6)
    np.testing.assert_allclose(found[1, 2], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert not np.asarray(inverse_of(np.zeros((1, 1, 3, 3), np.float32), 6)).any()
