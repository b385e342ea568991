"""Tests the feed-forward sub-layer against its formula, and that chunks change only memory."""

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.feed_forward import FeedForward, gelu_tanh
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

X = np.random.default_rng(0).normal(size=(2, 13, 8)).astype(np.float32)


def test_formula():
    module = nnx.merge(*drawn(lambda: FeedForward(LayerConfig(width=8), rngs=nnx.Rngs(0))))

    @quick
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = gelu_tanh(x @ module.up.kernel[...] + module.up.bias[...][None, None])
        return module(x), wide @ module.down.kernel[...] + module.down.bias[...][None, None]

    assert_close(*both_ways(X))


@pytest.mark.parametrize('chunk', [1, 4, 13])
def test_chunked_equals_whole_forward_and_backward(chunk: int):
    def loss(x: jax.Array, params: dict, chunk: int) -> jax.Array:
        config = LayerConfig(width=8, feed_forward_chunk=chunk)
        graph, _ = nnx.split(nnx.eval_shape(lambda: FeedForward(config, rngs=nnx.Rngs(0))))
        return (nnx.merge(graph, params)(x) ** 2).mean()

    _, params = drawn(lambda: FeedForward(LayerConfig(width=8), rngs=nnx.Rngs(0)))
    both_ways = quick(lambda *x: [jax.value_and_grad(loss, (0, 1))(*x, size) for size in (chunk, 0)])
    assert_close(*both_ways(X, params), gradient=True)


def test_chunks_keep_the_wide_activations_from_existing_whole():
    def temporary_bytes(chunk: int) -> int:
        def loss(x: jax.Array) -> jax.Array:
            config = LayerConfig(width=64, feed_forward_width=1024, feed_forward_chunk=chunk)
            return FeedForward(config, rngs=nnx.Rngs(0))(x).sum()

        x = jax.ShapeDtypeStruct((1, 2048, 64), np.float32)
        return jax.jit(jax.grad(loss)).lower(x).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(64) < 0.5 * temporary_bytes(0)
