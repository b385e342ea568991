"""Tests the Set Transformer's pooling against its equations in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.pooling import MultiheadPooling
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = LayerConfig(width=6, heads=2, feed_forward_width=5, init_std=0.7, activation='relu')
X = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
SEGMENTS = np.asarray([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 2, 0], [0] * 5])


def make(config: LayerConfig = CONFIG) -> MultiheadPooling:
    """Returns a pooling module whose biases and norm scales are not 0 and 1."""
    return nnx.merge(*drawn(lambda: MultiheadPooling(config, rngs=nnx.Rngs(3)), std=0.7))


def exact(array: object) -> np.ndarray:
    return np.asarray(array, np.float64)


def dense(layer: nnx.Linear, x: np.ndarray) -> np.ndarray:
    return x @ exact(layer.kernel[...]) + exact(layer.bias[...])


def normed(norm: nnx.LayerNorm, x: np.ndarray) -> np.ndarray:
    scaled = (x - x.mean()) / np.sqrt(x.var() + CONFIG.norm_epsilon)
    return scaled * exact(norm.scale[...]) + exact(norm.bias[...])


def by_definition(pooling: MultiheadPooling) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean weights over heads, and the vectors of rows with tokens: equations 6, 7 and 12 of the paper."""
    weights, vectors = np.zeros(SEGMENTS.shape), np.zeros((4, 6))
    seed = exact(pooling.seed[...])
    for row, segments in enumerate(np.asarray(SEGMENTS)):
        places = np.flatnonzero(segments)
        if not len(places):
            continue
        x, read = exact(X)[row, places], []
        for head in range(2):
            part = slice(3 * head, 3 * head + 3)
            query, keys, values = (
                dense(layer, of)[..., part]
                for layer, of in ((pooling.query, seed), (pooling.key, x), (pooling.value, x))
            )
            shares = np.exp(keys @ query / np.sqrt(3))
            shares /= shares.sum()
            weights[row, places] += shares / 2
            read.append(shares @ values)
        h = normed(pooling.norms[0], seed + dense(pooling.out, np.concatenate(read)))
        wide = np.maximum(dense(pooling.feed_forward.up, h), 0.0)
        vectors[row] = normed(pooling.norms[1], h + dense(pooling.feed_forward.down, wide))
    return weights, vectors


def test_formula():
    pooling = make()
    weights, vectors = by_definition(pooling)
    found = quick(lambda x, segments: (pooling.pooling_weights(x, segments), pooling(x, segments)))(X, SEGMENTS)
    assert_close(found, (weights, vectors))


def test_gradients_reach_all_parameters_and_no_padding():
    graph, state = drawn(lambda: MultiheadPooling(CONFIG, rngs=nnx.Rngs(3)))
    turn = np.cos(np.arange(24, dtype=np.float32)).reshape(4, 6)
    loss = lambda state, x: (nnx.merge(graph, state)(x, SEGMENTS) * turn).sum()  # noqa: E731
    to_params, to_x = jax.device_get(quick(jax.grad(loss, argnums=(0, 1)))(state, X))
    is_padding = SEGMENTS == 0
    assert not to_x[is_padding].any() and (to_x[~is_padding] != 0).any(axis=-1).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(to_params))
    names = {jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(to_params) if not leaf.any()}
    assert all('key' in name and 'bias' in name for name in names)  # Softmax cancels a bias of keys.


def test_order_and_padding_change_nothing():
    pooling = quick(make().__call__)
    whole = pooling(X, SEGMENTS)
    assert_close(pooling(X[:, ::-1], SEGMENTS[:, ::-1]), whole)
    wide = np.pad(X, ((0, 0), (2, 3), (0, 0)), constant_values=9.0)
    assert_close(pooling(wide, np.pad(SEGMENTS, ((0, 0), (2, 3)))), whole)


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
def test_sixteen_bits():
    rounded = make(dataclasses.replace(CONFIG, dtype='bfloat16'))
    run = quick(lambda x, segments: (rounded(x, segments), rounded.pooling_weights(x, segments)))
    out, weights = run(X.astype(jnp.bfloat16), SEGMENTS)
    assert out.dtype == jnp.bfloat16 and weights.dtype == jnp.float32
    assert_close(out, by_definition(rounded)[1], dtype='bfloat16')
