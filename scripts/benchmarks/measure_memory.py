"""One process, one measurement: training steps of a decoder, what they hold in memory and how long they take.

`scripts/benchmark.py memory` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.objectives.language_modelling import LanguageModelling
from efficient_attention.training.optimizer import STACKED_LAYERS, make_optimizer
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.training.step import StepFn, make_train_step

PROCESS = Path('/proc/self')


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Temporary bytes of the compiled step, and of real steps the seconds and the resident bytes that they add.

    A decoder with memory reads a full one.
    `shape` has `model` (fields of ModelConfig), `rows`, `length` and `steps`: timed ones, after one that is not; with 0
    nothing runs.
    """
    config = ModelConfig(**shape['model'])
    batch = random_batch(shape['rows'], shape['length'], config.vocab_size)
    train_step, first_state = make_step(config, shape['rows'])
    state = jax.eval_shape(first_state)
    step = jax.jit(train_step, donate_argnums=0).lower(state, batch).compile()
    memory = step.memory_analysis()
    result = {
        'name': f'efficient_attention, jax {jax.__version__}',
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        'temporary_bytes': memory.temp_size_in_bytes,
        'argument_bytes': memory.argument_size_in_bytes,
    }
    if not shape['steps']:
        return result
    # One program makes the state, so that each array has memory of its own, as giving it away needs.
    return result | run_steps(step, jax.jit(first_state)(), batch, shape['steps'])


def make_step(config: ModelConfig, rows: int) -> tuple[StepFn, Callable[[], TrainState]]:
    """The training step of a decoder with AdamW, and what makes its first state, in which a memory is of ones."""
    objective = LanguageModelling(config)
    graph, _ = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    optimizer = make_optimizer(
        OptimizerConfig(schedule='constant', warmup_steps=0), total_steps=1000, stacked=STACKED_LAYERS
    )

    def first_state() -> TrainState:
        params = nnx.to_pure_dict(nnx.state(Decoder(config, rngs=nnx.Rngs(0))))
        carry = jax.tree.map(jnp.ones_like, objective.initial_carry(rows))  # segment 1, as the batch has
        return initial_state(params, optimizer, seed=0, carry=carry)

    return make_train_step(graph, objective, optimizer), first_state


def random_batch(rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Rows of random ids without padding."""
    ids = np.random.default_rng(0).integers(0, vocab_size, (rows, length + 1), np.int32)
    whole = {'segments': np.ones((rows, length), np.int32), 'weights': np.ones((rows, length), np.float32)}
    return whole | {'tokens': ids[:, :-1], 'targets': ids[:, 1:]}


def run_steps(step: jax.stages.Compiled, state: TrainState, batch: dict[str, np.ndarray], count: int) -> dict[str, Any]:
    """Seconds of each of `count` steps after the first, and how far all of them raised the resident memory."""
    before = start_peak()
    seconds = []
    for _ in range(count + 1):
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - start)
    assert np.isfinite(metrics['loss'])
    return {'seconds': seconds[1:], 'peak_bytes': None if before is None else status_bytes('VmHWM') - before}


def start_peak() -> int | None:
    """The resident bytes now, from where on the system counts a new peak; None where it cannot (it is not Linux).

    Compiling takes more memory than a small step does, so the peak since the start of the process would hide it.
    """
    if platform.libc_ver()[0] == 'glibc':
        ctypes.CDLL(None).malloc_trim(0)  # what the compiler left behind would be used again, unseen
    try:
        (PROCESS / 'clear_refs').write_text('5', encoding='ascii')
        return status_bytes('VmRSS')
    except OSError:
        return None


def status_bytes(name: str) -> int:
    """A line of Linux's table of this process, which counts in KiB."""
    lines = (PROCESS / 'status').read_text(encoding='ascii').splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f'{name}:')) * 1024


if __name__ == '__main__':
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    print(json.dumps(measure(json.loads(sys.argv[1]))))
