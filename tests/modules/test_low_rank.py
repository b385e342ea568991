"""Products of two matrices in the place of one."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.low_rank import LowRank, LowRankTable
from efficient_attention.modules.parameters import embedding
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=8, heads=2, feed_forward_width=32, vocab_size=50, ranks=('up=3', 'token=2'), init_std=0.5)


def test_a_dense_layer_is_the_product_of_two():
    module = FeedForward(CONFIG, rngs=nnx.Rngs(0))
    assert isinstance(module.up, LowRank) and not isinstance(module.down, LowRank)
    module.up.right.bias[...] = jnp.arange(32.0)
    x_BLD = jax.random.normal(jax.random.key(0), (2, 3, 8))
    kernel = module.up.left.kernel[...] @ module.up.right.kernel[...]
    assert_close(module.up(x_BLD), np.asarray(x_BLD) @ np.asarray(kernel) + np.arange(32.0, dtype=np.float32))
    assert isinstance(FeedForward(LayerConfig(width=8, heads=2), rngs=nnx.Rngs(0)).up, nnx.Linear)


def test_a_table_is_narrow_vectors_times_a_matrix():
    rngs = nnx.Rngs(0)
    table = LowRankTable(CONFIG, embedding(CONFIG, 50, 8, rngs, axes='VE'), 2, rngs=rngs)
    ids = jnp.array([[3, 0, 49]])
    whole = table.vectors(jnp.float32)
    assert whole.shape == (50, 8) and np.linalg.matrix_rank(np.asarray(whole)) == 2
    assert_close(table(ids), whole[ids])
