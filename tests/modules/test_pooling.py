"""A row's vector against NumPy; padding has no part in it, and sends back no gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.pooling import Pooling
from tests.tolerances import assert_close

CONFIG = LayerConfig(width=6, init_std=0.7)
X = jax.random.normal(jax.random.key(0), (4, 5, 6))
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 2, 0], [0] * 5])
KINDS = ('first', 'mean', 'attention')


def make(kind: str, config: LayerConfig = CONFIG) -> Pooling:
    return Pooling(config, kind, rngs=nnx.Rngs(3))


def by_definition(pooling: Pooling) -> tuple[np.ndarray, np.ndarray]:
    """Weights and vectors in float64, row by row, of a row's tokens alone."""
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
    if kind == 'attention':
        pooling.dense.bias[...] = jnp.linspace(-1.0, 1.0, pooling.dense.bias.size)
    weights, vectors = by_definition(pooling)
    assert_close(pooling.weights(X, SEGMENTS), weights)
    assert_close(pooling(X, SEGMENTS), vectors)
    assert not pooling(X, SEGMENTS)[3].any()  # a row of padding


def test_the_first_vector_is_read_alone():
    pooling = make('first')
    np.testing.assert_array_equal(pooling(X, SEGMENTS), X[:, 0])
    np.testing.assert_array_equal(pooling.weights(X, SEGMENTS), [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0] * 5, [0] * 5])
    assert not jax.tree.leaves(nnx.state(pooling))


@pytest.mark.parametrize('kind', ['mean', 'attention'])
def test_gradients_to_padding_are_zero_and_finite_to_tokens(kind: str):
    pooling = make(kind)
    graph, state = nnx.split(pooling)
    loss = lambda state, x: jnp.square(nnx.merge(graph, state)(x, SEGMENTS)).sum()  # noqa: E731
    to_params, to_x = jax.grad(loss, argnums=(0, 1))(state, X)
    is_padding = np.asarray(SEGMENTS) == 0
    assert not np.asarray(to_x)[is_padding].any() and (np.asarray(to_x)[~is_padding] != 0).all()
    assert all(jnp.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(to_params))


def test_vectors_move_with_their_rows_and_padding_changes_nothing():
    pooling, order = make('attention'), jnp.asarray([2, 0, 3, 1])
    whole = pooling(X, SEGMENTS)
    assert_close(pooling(X[order], SEGMENTS[order]), whole[order])
    wide = jnp.pad(X, ((0, 0), (2, 3), (0, 0)), constant_values=9.0)
    assert_close(pooling(wide, jnp.pad(SEGMENTS, ((0, 0), (2, 3)))), whole)


def test_large_scores_stay_finite_and_statistics_are_float32():
    pooling = make('attention')
    pooling.query[...] = pooling.query[...] * 1e4
    weights = pooling.weights(X, SEGMENTS)
    assert jnp.isfinite(weights).all() and jnp.allclose(weights.sum(axis=1), jnp.asarray([1.0, 1.0, 1.0, 0.0]))
    rounded = make('attention', LayerConfig(width=6, init_std=0.7, dtype='bfloat16'))
    x = X.astype(jnp.bfloat16)
    assert rounded.weights(x, SEGMENTS).dtype == jnp.float32 and rounded(x, SEGMENTS).dtype == jnp.bfloat16
    assert_close(rounded(x, SEGMENTS).astype(jnp.float32), by_definition(rounded)[1], dtype='bfloat16')
