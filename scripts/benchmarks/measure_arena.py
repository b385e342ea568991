"""One process, one measurement: training steps of a long-range classifier, and what they hold in memory.

`scripts/benchmark.py arena` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.objectives.fine_tuning import FineTuning
from efficient_attention.training.optimizer import STACKED_LAYERS, make_optimizer
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.training.step import StepFn, make_train_step
from scripts.benchmarks.measure_memory import run_steps


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Temporary bytes of the compiled step, and of real steps the seconds and the resident bytes that they add.

    `shape` has `model` and `head` (fields of ModelConfig and HeadConfig), `rows`, `length` and `steps`: timed ones,
    after one that is not.
    """
    config, head = ModelConfig(**shape['model']), HeadConfig(**shape['head'])
    batch = random_batch(shape['rows'], shape['length'], config.vocab_size)
    train_step, first_state = make_step(config, head)
    state = jax.eval_shape(first_state)
    step = jax.jit(train_step, donate_argnums=0).lower(state, batch).compile()
    # One program makes the state, so that each array has memory of its own, as giving it away needs.
    return {
        'name': f'efficient_attention, jax {jax.__version__}',
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        'temporary_bytes': step.memory_analysis().temp_size_in_bytes,
        **run_steps(step, jax.jit(first_state)(), batch, shape['steps']),
    }


def make_step(config: ModelConfig, head: HeadConfig) -> tuple[StepFn, Callable[[], TrainState]]:
    """The training step of a classifier with AdamW, and what makes its first state."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0))))
    optimizer = make_optimizer(
        OptimizerConfig(schedule='constant', warmup_steps=0), total_steps=1000, stacked=STACKED_LAYERS
    )

    def first_state() -> TrainState:
        params = nnx.to_pure_dict(nnx.state(FineTuningModel(config, head, rngs=nnx.Rngs(0))))
        return initial_state(params, optimizer, seed=0)

    return make_train_step(graph, FineTuning(head), optimizer), first_state


def random_batch(rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Rows of random ids without padding, with classes."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab_size, (rows, length), np.int32)
    whole = {'segments': np.ones_like(tokens), 'token_types': np.zeros_like(tokens)}
    labels = {'label': np.arange(rows, dtype=np.int32) % 2, 'index': np.arange(rows, dtype=np.int32)}
    return whole | labels | {'tokens': tokens, 'weights': np.ones(rows, np.float32)}


if __name__ == '__main__':
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    print(json.dumps(measure(json.loads(sys.argv[1]))))
