"""Measures an encoder as users would write it in plain Flax NNX, without code of this project, for comparison."""

import time
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def measure_plain_encoder(shape: dict[str, Any], time_of: Callable[[Any], float]) -> dict[str, Any]:
    """Measures the plain encoder's forward pass: milliseconds, temporary memory, and seconds of compilation.

    `time_of` measures the milliseconds of a function.
    """
    encoder = PlainEncoder(shape['model'], nnx.Rngs(0))
    tokens = np.random.default_rng(0).integers(5, shape['model']['vocab_size'], (shape['rows'], shape['length']))
    tokens_BL, mask_BL = jnp.asarray(tokens, jnp.int32), jnp.ones(tokens.shape, bool)
    graph, state = nnx.split(encoder)
    start = time.perf_counter()
    program = (
        jax.jit(lambda state, *inputs: nnx.merge(graph, state)(*inputs)).lower(state, tokens_BL, mask_BL).compile()
    )
    compiled = time.perf_counter() - start
    milliseconds = time_of(lambda: program(state, tokens_BL, mask_BL))
    memory = program.memory_analysis()
    return {
        'name': f'plain Flax NNX {flax.__version__}, jax {jax.__version__}',
        'milliseconds': milliseconds,
        'temporary_bytes': memory.temp_size_in_bytes,
        'program_lines': len(program.as_text().splitlines()),
        'compile_seconds': compiled,
    }


class PlainLayer(nnx.Module):
    """A Transformer layer: self-attention and a feed-forward layer, each followed by residual sum and normalisation."""

    def __init__(self, model: dict[str, Any], rngs: nnx.Rngs) -> None:
        width, inner, dtype = model['width'], model['feed_forward_width'], model.get('dtype')
        self.attention = nnx.MultiHeadAttention(model['heads'], width, decode=False, dtype=dtype, rngs=rngs)
        self.attention_norm = nnx.LayerNorm(width, epsilon=1e-12, dtype=dtype, rngs=rngs)
        self.up = nnx.Linear(width, inner, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(inner, width, dtype=dtype, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-12, dtype=dtype, rngs=rngs)

    def __call__(self, x_BLD: jax.Array, mask_B11M: jax.Array) -> jax.Array:
        """Returns the hidden states after this layer, [B, L, D]."""
        x_BLD = self.attention_norm(x_BLD + self.attention(x_BLD, mask=mask_B11M))
        return self.norm(x_BLD + self.down(nnx.gelu(self.up(x_BLD), approximate=False)))


class PlainEncoder(nnx.Module):
    """A post-norm Transformer encoder: embeddings and layers.

    It computes in `dtype` of the model's fields, by default in float32.
    """

    def __init__(self, model: dict[str, Any], rngs: nnx.Rngs) -> None:
        width, dtype = model['width'], model.get('dtype')
        self.token = nnx.Embed(model['vocab_size'], width, dtype=dtype, rngs=rngs)
        self.position = nnx.Embed(512, width, dtype=dtype, rngs=rngs)
        self.token_type = nnx.Embed(2, width, dtype=dtype, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-12, dtype=dtype, rngs=rngs)
        self.layers = nnx.List([PlainLayer(model, rngs) for _ in range(model['layers'])])

    def __call__(self, tokens_BL: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """Returns the hidden states of the last layer, [B, L, D]."""
        positions_1L = jnp.arange(tokens_BL.shape[1])[None]
        x_BLD = self.norm(
            self.token(tokens_BL) + self.position(positions_1L) + self.token_type(jnp.zeros_like(tokens_BL))
        )
        for layer in self.layers:
            x_BLD = layer(x_BLD, mask_BL[:, None, None, :])
        return x_BLD
