"""Tests low-rank layers, in which the product of two matrices replaces one matrix."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.layer_constructors import embedding
from efficient_attention.modules.low_rank import LowRankDense, LowRankTable
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=8, heads=2, feed_forward_width=32, vocab_size=50, ranks=('up=3', 'token=2'), init_std=0.5)


def test_a_dense_layer_is_the_product_of_two():
    module = nnx.merge(*drawn(lambda: FeedForward(CONFIG, rngs=nnx.Rngs(0))))
    assert isinstance(module.up, LowRankDense) and not isinstance(module.down, LowRankDense)
    x_BLD = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    kernel = np.asarray(module.up.left.kernel[...]) @ np.asarray(module.up.right.kernel[...])
    assert_close(quick(module.up.__call__)(x_BLD), x_BLD @ kernel + np.asarray(module.up.right.bias[...]))
    whole = nnx.eval_shape(lambda: FeedForward(LayerConfig(width=8, heads=2), rngs=nnx.Rngs(0)))
    assert isinstance(whole.up, nnx.Linear)


def test_a_table_is_narrow_vectors_times_a_matrix():
    def make() -> LowRankTable:
        rngs = nnx.Rngs(0)
        return LowRankTable(CONFIG, embedding(CONFIG, 50, 8, rngs, axes='VE'), 2, rngs=rngs)

    table, ids = nnx.merge(*drawn(make)), np.array([[3, 0, 49]])
    whole, found = jax.device_get(quick(lambda ids: (table.table_vectors(jnp.float32), table(ids)))(ids))
    assert whole.shape == (50, 8) and np.linalg.matrix_rank(whole) == 2
    assert_close(found, whole[ids])
