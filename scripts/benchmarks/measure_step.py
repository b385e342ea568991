"""One process, one measurement: training steps of this project's BERT through its own training step.

`scripts/benchmark.py` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import json
import os
import resource
import sys
import time
from typing import Any

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.objectives.pretraining import Pretraining
from efficient_attention.training.optimizer import make_optimizer
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.training.step import StepFn, make_train_step


def ours_step(shape: dict[str, Any]) -> tuple[StepFn, TrainState]:
    """The compiled-on-first-call training step of a BERT of this shape, and its first state."""
    sizes = {name: shape[name] for name in ('vocab_size', 'layers', 'width', 'heads', 'dropout_rate')}
    choices = {'attention_dropout_rate': shape['dropout_rate'], 'activation': 'gelu_erf'}  # the peer's default
    config = ModelConfig(**(sizes | choices | shape.get('model', {})))
    graph, params = nnx.split(PretrainingModel(config, has_pairs=False, rngs=nnx.Rngs(0)))
    optimizer_config = OptimizerConfig(schedule='constant', warmup_steps=0, bias_correction=True, clip_norm=0.0)
    optimizer = make_optimizer(optimizer_config, total_steps=1000, stacked=None)
    step = make_train_step(graph, Pretraining(has_pairs=False), optimizer)
    return jax.jit(step, donate_argnums=0), initial_state(nnx.to_pure_dict(params), optimizer, seed=0)


def masked_batches(shape: dict[str, Any], count: int) -> list[dict[str, np.ndarray]]:
    """`count` batches of random ids, whole rows, the given number of masked positions a row."""
    rng = np.random.default_rng(0)
    size = (shape['rows'], shape['length'])
    batches = []
    for _ in range(count):
        tokens = rng.integers(5, shape['vocab_size'], size, np.int32)
        chosen = np.stack([rng.choice(shape['length'], shape['masked'], replace=False) for _ in range(shape['rows'])])
        positions = np.sort(chosen, axis=1).astype(np.int32)
        batches.append(
            {
                'tokens': tokens,
                'segments': np.ones(size, np.int32),
                'token_types': np.zeros(size, np.int32),
                'positions': np.broadcast_to(np.arange(shape['length'], dtype=np.int32), size),
                'masked_positions': positions,
                'masked_tokens': np.take_along_axis(tokens, positions, axis=1),
                'masked_weights': np.ones(positions.shape, np.float32),
            }
        )
    return batches


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the first step and of those after the warm-up, and this process's largest resident memory in bytes."""
    jax.devices()
    baseline = peak_bytes()
    step, state = ours_step(shape)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    batches = masked_batches(shape, 8)
    seconds: list[float] = []
    for number in range(shape['warmup_steps'] + shape['steps']):
        start = time.perf_counter()
        state, metrics = step(state, batches[number % len(batches)])
        loss = float(metrics['loss'])
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - start)
    assert np.isfinite(loss)
    return {
        'name': f'efficient_attention, jax {jax.__version__}',
        'threads': len(os.sched_getaffinity(0)),
        'parameters': parameters,
        'first_seconds': seconds[0],  # with the compilation
        'seconds': seconds[shape['warmup_steps'] :],
        'baseline_bytes': baseline,
        'peak_bytes': peak_bytes(),
    }


def peak_bytes() -> int:
    """The largest resident memory of this process so far; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))
