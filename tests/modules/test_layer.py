"""The encoder layer: where the norms stand, and dropout that follows rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer import Layer, fold
from tests.tolerances import assert_close

X = jax.random.normal(jax.random.key(0), (3, 6, 16))
SEGMENTS = jnp.ones((3, 6), jnp.int32)
POSITIONS = jnp.tile(jnp.arange(6)[None], (3, 1))


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_order_of_norm_and_residual(norm: str):
    layer = Layer(LayerConfig(width=16, heads=2, norm=norm, init_std=0.3), rngs=nnx.Rngs(0))

    def attention(x: jax.Array) -> jax.Array:
        return layer.attention(x, SEGMENTS, POSITIONS)

    if norm == 'pre':
        x = X + attention(layer.attention_norm(X))
        expected = x + layer.feed_forward(layer.feed_forward_norm(x))
    else:
        x = layer.attention_norm(X + attention(X))
        expected = layer.feed_forward_norm(x + layer.feed_forward(x))
    assert_close(layer(X, SEGMENTS, POSITIONS), expected)


def test_keys_for_rows_make_dropout_independent_of_the_batch():
    layer = Layer(LayerConfig(width=16, heads=2, init_std=0.3), rngs=nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(1), 3)
    whole = layer(X, SEGMENTS, POSITIONS, rng=keys)
    part = layer(X[1:], SEGMENTS[1:], POSITIONS[1:], rng=keys[1:])
    assert_close(whole[1:], part)
    assert jnp.abs(whole - layer(X, SEGMENTS, POSITIONS)).max() > 1e-2


def test_both_branches_drop_elements_of_their_own():
    layer = Layer(LayerConfig(width=16, heads=2, init_std=0.3, dropout_rate=0.5), rngs=nnx.Rngs(0))
    rng = jax.random.key(1)
    dropped = layer.attention_branch(X, SEGMENTS, POSITIONS, rng=rng) == 0, layer.feed_forward_branch(X, rng=rng) == 0
    share = (dropped[0] == dropped[1]).mean()
    assert abs(share - 0.5) < 4 * 0.5 / X.size**0.5


def test_fold_gives_each_number_its_own_key():
    assert fold(None, 3) is None
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(0), 4)
    assert fold(key, 1) != fold(key, 2)
    data = np.asarray(jax.random.key_data(jnp.stack([fold(keys, 0), fold(keys, 1)]))).reshape(8, -1)
    assert len(np.unique(data, axis=0)) == 8
