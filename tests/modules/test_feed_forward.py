"""The feed-forward sub-layer: its formula, and that chunks change nothing but memory."""

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.feed_forward import FeedForward, gelu_tanh
from tests.tolerances import assert_close

X = jax.random.normal(jax.random.key(0), (2, 13, 8))


def test_formula():
    module = FeedForward(LayerConfig(width=8, init_std=0.3), rngs=nnx.Rngs(0))
    expected = gelu_tanh(X @ module.up.kernel[...]) @ module.down.kernel[...]
    assert_close(module(X), expected)


@pytest.mark.parametrize('chunk', [1, 4, 13, 20])
def test_chunked_equals_whole_forward_and_backward(chunk: int):
    def run(chunk: int) -> tuple[jax.Array, tuple]:
        config = LayerConfig(width=8, init_std=0.3, feed_forward_chunk=chunk)
        graph, state = nnx.split(FeedForward(config, rngs=nnx.Rngs(0)))
        loss = jax.value_and_grad(lambda x, state: (nnx.merge(graph, state)(x) ** 2).mean(), (0, 1))
        return jax.jit(loss)(X, state)

    assert_close(run(chunk), run(0), gradient=True)


def test_chunks_keep_the_wide_activations_from_existing_whole():
    def temporary_bytes(chunk: int) -> int:
        def loss(x: jax.Array) -> jax.Array:
            config = LayerConfig(width=64, feed_forward_width=1024, feed_forward_chunk=chunk)
            return FeedForward(config, rngs=nnx.Rngs(0))(x).sum()

        x = jax.ShapeDtypeStruct((1, 2048, 64), np.float32)
        return jax.jit(jax.grad(loss)).lower(x).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(64) < 0.5 * temporary_bytes(0)
