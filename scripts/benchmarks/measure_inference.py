"""One process, one measurement: inference of this project's BERT encoder, one call after another.

`scripts/benchmark.py` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.inference_layout import for_inference
from efficient_attention.models.quantized import store_codes
from scripts.benchmarks.measure_memory import start_peak, status_bytes
from scripts.benchmarks.peers.nnx_inference import time_of


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds and memory of a call, and what its program costs to make.

    'temporary_bytes' is what the program plans beside its arguments and results, 'peak_bytes' how far calls raised the
    resident memory (None where the system does not tell).

    Args:
        shape: 'model' (fields of `ModelConfig`), 'rows', 'length', and 'layout': 'separate' as inference has its
            parameters, or 'stacked' as training has them.
    """
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in shape['model'].items()}
    config = ModelConfig(**fields, activation='gelu_erf', max_length=512)
    graph, state = nnx.split(nnx.eval_shape(lambda: Encoder(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: 0.02 * rng.standard_normal(leaf.shape, np.float32), nnx.to_pure_dict(state))
    if config.quantization != 'none':
        module = nnx.merge(graph, params)
        store_codes(module)
        graph, state = nnx.split(module)
        params = nnx.to_pure_dict(state)
    if shape['layout'] == 'separate':
        graph, params = for_inference(graph, params)
    params = jax.device_put(params)
    tokens_BL = jnp.asarray(rng.integers(5, config.vocab_size, (shape['rows'], shape['length'])), jnp.int32)
    inputs = params, tokens_BL, jnp.ones_like(tokens_BL)
    start = time.perf_counter()
    program = jax.jit(lambda params, *inputs: nnx.merge(graph, params)(*inputs)).lower(*inputs).compile()
    seconds = time.perf_counter() - start
    before = start_peak()
    milliseconds = time_of(lambda: program(*inputs))
    return {
        'name': f'efficient_attention, jax {jax.__version__}',
        'milliseconds': milliseconds,
        'parameter_bytes': sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
        'peak_bytes': None if before is None else max(status_bytes('VmHWM') - before, 0),
        'temporary_bytes': program.memory_analysis().temp_size_in_bytes,
        'program_lines': len(program.as_text().splitlines()),
        'compile_seconds': seconds,
    }


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))
