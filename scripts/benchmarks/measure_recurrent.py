"""One process, one measurement of recurrent cells, or of layers that mix positions, forward and backward.

`scripts/benchmark.py recurrent` starts it and gives the shape as one JSON object; it prints one JSON object. `program`
is one of `PROGRAMS`. Gradients are those of inputs and parameters.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == '__main__':
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.context import Context
from efficient_attention.modules.recurrent import CellParameters, Recurrent
from efficient_attention.recurrence.recur import recur
from scripts.benchmarks.measure_attention import peak_bytes, seconds
from scripts.benchmarks.measure_decoding import measure as measure_token

Compute = Callable[[Any, Array], Array]  # from parameters and inputs [B, L, D] to outputs [B, L, U]
NNX_CELLS = {'tanh': nnx.SimpleCell, 'gru': nnx.GRUCell, 'lstm': nnx.OptimizedLSTMCell}


def ours(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """A cell of this project over rows without padding."""
    graph, parameters = nnx.split(CellParameters(config_of(shape), rngs=nnx.Rngs(0)))
    chunk = shape.get('chunk', 0)
    return lambda parameters, x: recur(nnx.merge(graph, parameters).learned(), x, chunk=chunk)[0], parameters


def plain_nnx(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """The same cell of Flax under `nnx.RNN`."""
    cell = NNX_CELLS[shape['cell']](shape['width'], shape['width'], rngs=nnx.Rngs(0))
    start = cell.initialize_carry((shape['rows'], shape['width']), nnx.Rngs(0))
    graph, parameters, other = nnx.split(nnx.RNN(cell, rngs=False), nnx.Param, ...)
    return lambda parameters, x: nnx.merge(graph, parameters, other)(x, initial_carry=start), parameters


def layer(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """What mixes positions in one of our layers: a cell, or attention with its projections."""
    config, segments = config_of(shape), jnp.ones((shape['rows'], shape['length']), jnp.int32)
    kind = Recurrent if config.cell != 'none' else Attention
    graph, parameters, other = nnx.split(kind(config, rngs=nnx.Rngs(0)), nnx.Param, ...)
    positions = jnp.broadcast_to(jnp.arange(shape['length']), segments.shape)

    def compute(parameters: Any, x: Array) -> Array:
        module = nnx.merge(graph, parameters, other)
        if isinstance(module, Recurrent):
            return module(x, segments)
        return module.run(x, Context(segments, positions), config.mechanisms[0])[0]

    return compute, parameters


def config_of(shape: dict[str, Any]) -> LayerConfig:
    """The config of the layer that has the shape's cell, or its attention."""
    fields = {'width': shape['width'], 'heads': shape['width'] // 64 or 1, 'attention_dropout_rate': 0.0}
    return ModelConfig(cell=shape.get('cell', 'none'), attention=shape.get('attention', 'full'), **fields)


SIDES = {'ours': ours, 'nnx': plain_nnx, 'layer': layer}


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each call, and bytes, of what the shape's `program` names."""
    return PROGRAMS[shape['program']](shape)


def call(shape: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each call forward and forward + backward, and peak resident memory above that of the inputs."""
    compute, parameters = SIDES[shape['side']](shape)
    x, cotangent = inputs(shape)
    baseline = peak_bytes()
    programs = {'forward': jax.jit(compute), 'forward_backward': gradient(compute, cotangent)}
    result: dict[str, Any] = {'name': f'{shape["side"]}, jax {jax.__version__}'}
    for name, program in programs.items():
        result[name] = seconds(lambda program=program: jax.block_until_ready(program(parameters, x)), shape['steps'])
    return result | {'peak_bytes': peak_bytes() - baseline}


def memory(shape: dict[str, Any]) -> dict[str, Any]:
    """Temporary bytes of the compiled forward + backward; nothing runs."""
    compute, parameters = ours(shape)
    x, cotangent = inputs(shape)
    compiled = gradient(compute, cotangent).lower(parameters, x).compile()
    return {'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes}


def token(shape: dict[str, Any]) -> dict[str, Any]:
    """Seconds for a token that a decoder of one layer adds to a text of `length` tokens, from what it keeps of it."""
    fields = {'layers': 1, 'width': shape['width'], 'heads': shape['width'] // 64 or 1, 'vocab_size': 256}
    fields |= {'norm': 'pre', 'positions': 'none', 'dropout_rate': 0.0, 'attention_dropout_rate': 0.0}
    fields |= {'cell': shape['cell'], 'attention': 'causal'} if 'cell' in shape else {'attention': shape['attention']}
    found = measure_token({'model': fields, 'context': shape['length'], 'way': 'cached', 'calls': shape['steps']})
    return {'token': [1.0 / rate for rate in found['rates']], 'state_bytes': found['state_bytes']}


PROGRAMS = {'call': call, 'memory': memory, 'token': token}


def inputs(shape: dict[str, Any]) -> tuple[Array, Array]:
    """Inputs and the gradient of the outputs, [B, L, D] each."""
    size = (shape['rows'], shape['length'], shape['width'])
    return jax.block_until_ready(tuple(jax.random.normal(key, size) for key in jax.random.split(jax.random.key(0))))


def gradient(compute: Compute, cotangent: Array) -> Any:
    """The compiled function to the gradients of parameters and inputs."""
    return jax.jit(jax.grad(lambda parameters, x: (compute(parameters, x) * cotangent).sum(), argnums=(0, 1)))


if __name__ == '__main__':
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    print(json.dumps(measure(json.loads(sys.argv[1]))))
