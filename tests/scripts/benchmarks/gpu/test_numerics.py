"""Tests the float64 reference of the GPU benchmark: its gradients are the slopes of its output."""

import numpy as np
import pytest

from scripts.benchmarks.gpu import numerics


def test_the_gradients_are_slopes_of_the_output():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 6, 2, 3)) for _ in range(4)]
    allowed_HLM = np.tril(rng.random((2, 6, 6)) < 0.6) | np.eye(6, dtype=bool)
    *operands, gradient = arrays
    out, *slopes = numerics.attend_exactly(*arrays, allowed_HLM)
    assert out[0, 0, 0] == pytest.approx(operands[2][0, 0, 0])  # the first query reads only itself
    for number, slope in enumerate(slopes):
        turn = rng.normal(size=slope.shape)
        moved = [
            [one + sign * 1e-6 * turn * (number == place) for place, one in enumerate(operands)] for sign in (1, -1)
        ]
        ends = [numerics.attend_exactly(*one, gradient, allowed_HLM)[0] for one in moved]
        found = ((ends[0] - ends[1]) * gradient).sum() / 2e-6
        assert found == pytest.approx((slope * turn).sum(), rel=1e-6)


def test_errors_are_relative_norms_and_largest_differences():
    exact = [np.full(4, 2.0)] * 4
    found = [exact[0] + 0.2, exact[0], exact[0] + [0.0, 0.0, 0.0, 0.4], exact[0]]
    errors = numerics.errors_of(found, exact)
    assert errors == pytest.approx(
        {'output_error': 0.1, 'gradient_error': 0.1, 'output_max_error': 0.2, 'gradient_max_error': 0.4}
    )
