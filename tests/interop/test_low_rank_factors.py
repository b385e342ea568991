"""Tests of low-rank factors and their products in parameter trees of any shape."""

import jax
import numpy as np

from efficient_attention.interop.low_rank_factors import factor_params, multiply_factors


def test_products_and_factors_are_inverse_where_the_rank_is_enough():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 6, 3)).astype(np.float32), rng.normal(size=(2, 3, 5)).astype(np.float32)
    table, projection = rng.normal(size=(9, 2)).astype(np.float32), rng.normal(size=(2, 4)).astype(np.float32)
    params = {
        'up': {'left': {'kernel': first}, 'right': {'kernel': second, 'bias': np.ones((2, 5), np.float32)}},
        'token': {'table': {'embedding': table}, 'projection': {'kernel': projection}},
        'norm': {0: {'scale': np.ones(3)}},
    }
    whole = multiply_factors(params)
    assert set(whole['up']) == {'kernel', 'bias'} and whole['token']['embedding'].shape == (9, 4)
    again = factor_params(whole, params)
    assert jax.tree.map(np.shape, again) == jax.tree.map(np.shape, params)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), multiply_factors(again), whole)
    norms = [np.linalg.norm(again['up'][side]['kernel']) for side in ('left', 'right')]
    assert abs(norms[0] / norms[1] - 1) < 1e-5  # Both factors have the same norm.
