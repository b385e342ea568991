"""One process, one measurement: inference of a BERT encoder as a user would write it in plain Flax NNX.

`scripts/benchmark.py` starts it and gives the shape as one JSON object; it prints one JSON object. Nothing here is of
this project but the dimension letters: Flax's own layers one after another, and `nnx.jit`.
"""

import json
import sys
import time
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

LEAST_SECONDS = 1.0  # of timed calls


class Layer(nnx.Module):
    """Self-attention and a feed-forward layer, each followed by residual sum and normalisation."""

    def __init__(self, model: dict[str, Any], rngs: nnx.Rngs) -> None:
        width, inner = model['width'], model['feed_forward_width']
        self.attention = nnx.MultiHeadAttention(model['heads'], width, decode=False, rngs=rngs)
        self.attention_norm = nnx.LayerNorm(width, epsilon=1e-12, rngs=rngs)
        self.up, self.down = nnx.Linear(width, inner, rngs=rngs), nnx.Linear(inner, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-12, rngs=rngs)

    def __call__(self, x_BLD: jax.Array, mask_B11M: jax.Array) -> jax.Array:
        """The layer's output, [B, L, D]."""
        x_BLD = self.attention_norm(x_BLD + self.attention(x_BLD, mask=mask_B11M))
        return self.norm(x_BLD + self.down(nnx.gelu(self.up(x_BLD), approximate=False)))


class Encoder(nnx.Module):
    """Embeddings and layers."""

    def __init__(self, model: dict[str, Any], rngs: nnx.Rngs) -> None:
        width = model['width']
        self.token = nnx.Embed(model['vocab_size'], width, rngs=rngs)
        self.position = nnx.Embed(512, width, rngs=rngs)
        self.token_type = nnx.Embed(2, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-12, rngs=rngs)
        self.layers = nnx.List([Layer(model, rngs) for _ in range(model['layers'])])

    def __call__(self, tokens_BL: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """Vectors, [B, L, D]."""
        positions_1L = jnp.arange(tokens_BL.shape[1])[None]
        x_BLD = self.norm(
            self.token(tokens_BL) + self.position(positions_1L) + self.token_type(jnp.zeros_like(tokens_BL))
        )
        for layer in self.layers:
            x_BLD = layer(x_BLD, mask_BL[:, None, None, :])
        return x_BLD


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds and temporary memory of a call, and seconds of its compilation."""
    encoder = Encoder(shape['model'], nnx.Rngs(0))
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


def time_of(call: Any) -> float:
    """Median milliseconds of a call, after two that are not timed."""
    for _ in range(2):
        jax.block_until_ready(call())
    times: list[float] = []
    while len(times) < 5 or sum(times) < LEAST_SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))
