"""Tests pooling to a row's vector against NumPy; padding does not count and gets no gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.pooling import Pooling
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = LayerConfig(width=6, init_std=0.7)
X = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
SEGMENTS = np.asarray([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 2, 0], [0] * 5])
KINDS = ('first', 'mean', 'attention')


def make(kind: str, config: LayerConfig = CONFIG) -> Pooling:
    return nnx.merge(*drawn(lambda: Pooling(config, kind, rngs=nnx.Rngs(3)), std=0.7))


def run(pooling: Pooling, x: np.ndarray = X, segments: np.ndarray = SEGMENTS) -> list[np.ndarray]:
    """Returns the pooling weights and the pooled vectors."""
    both = quick(lambda x, segments: [pooling.pooling_weights(x, segments), pooling(x, segments)])
    return jax.device_get(both(x, segments))


def by_definition(pooling: Pooling) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights and vectors in float64, row by row, from only the row's tokens."""
    x, weights = np.asarray(X, np.float64), np.zeros(SEGMENTS.shape)
    for row, segments in enumerate(np.asarray(SEGMENTS)):
        places = np.flatnonzero(segments)
        if pooling.kind == 'mean' and len(places):
            weights[row, places] = 1 / len(places)
        elif len(places):
            u = x[row, places] @ np.asarray(pooling.dense.kernel[...], np.float64)
            u = np.tanh(u + np.asarray(pooling.dense.bias[...], np.float64))
            scores = np.exp(u @ np.asarray(pooling.query[...], np.float64))
            weights[row, places] = scores / scores.sum()
    return weights, np.stack([one @ vectors for one, vectors in zip(weights, x, strict=True)])


@pytest.mark.parametrize('kind', ['mean', 'attention'])
def test_formula(kind: str):
    pooling = make(kind)
    found = run(pooling)
    assert_close(tuple(found), by_definition(pooling))
    assert not found[1][3].any()  # This row is all padding.


def test_the_first_vector_is_read_alone():
    pooling = make('first')
    weights, vectors = run(pooling)
    np.testing.assert_array_equal(vectors, X[:, 0])
    np.testing.assert_array_equal(weights, [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0] * 5, [0] * 5])
    assert not jax.tree.leaves(nnx.state(pooling))


@pytest.mark.parametrize('kind', ['mean', 'attention'])
def test_gradients_to_padding_are_zero_and_finite_to_tokens(kind: str):
    graph, state = nnx.split(make(kind))
    loss = lambda state, x: jnp.square(nnx.merge(graph, state)(x, SEGMENTS)).sum()  # noqa: E731
    to_params, to_x = jax.device_get(quick(jax.grad(loss, argnums=(0, 1)))(state, X))
    is_padding = SEGMENTS == 0
    assert not to_x[is_padding].any() and (to_x[~is_padding] != 0).all()
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(to_params))


def test_vectors_move_with_their_rows_and_padding_changes_nothing():
    pooling, order = quick(make('attention').__call__), [2, 0, 3, 1]
    whole = np.asarray(pooling(X, SEGMENTS))
    assert_close(pooling(X[order], SEGMENTS[order]), whole[order])
    wide = np.pad(X, ((0, 0), (2, 3), (0, 0)), constant_values=9.0)
    assert_close(pooling(wide, np.pad(SEGMENTS, ((0, 0), (2, 3)))), whole)


def test_large_scores_stay_finite_and_statistics_are_float32():
    pooling = make('attention')
    pooling.query[...] = jnp.asarray(1e4 * np.asarray(pooling.query[...]))
    weights, _ = run(pooling)
    assert np.isfinite(weights).all() and np.allclose(weights.sum(axis=1), [1.0, 1.0, 1.0, 0.0])
    rounded = make('attention', LayerConfig(width=6, init_std=0.7, dtype='bfloat16'))
    weights, vectors = run(rounded, X.astype(jnp.bfloat16))
    assert weights.dtype == jnp.float32 and vectors.dtype == jnp.bfloat16
    assert_close(vectors, by_definition(rounded)[1], dtype='bfloat16')
