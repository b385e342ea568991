"""One process, one measurement: training steps of a classifier, and of what makes smaller ones, in turn.

`scripts/benchmark.py` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.config.prune import PruneConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.inference_layout import for_inference
from efficient_attention.objectives.distillation import Distillation
from efficient_attention.objectives.fine_tuning import FineTuning
from efficient_attention.pruning.pruner import make_pruner
from efficient_attention.training.optimizer import make_optimizer
from efficient_attention.training.parts import parts_of
from efficient_attention.training.state import initial_state
from efficient_attention.training.step import make_train_step

HEAD = HeadConfig(kind='sequence')
STEPS = 1000  # of the run whose schedules are followed
WAYS = ('plain', 'movement', 'qat', 'student', 'teacher', 'live', 'kept')
Step = Callable[[], Any]


class Trained:
    """A model and its state, which `step` moves on by a batch."""

    def __init__(
        self, fields: dict[str, Any], *, is_pruned: bool = False, distill: DistillConfig | None = None
    ) -> None:
        config = ModelConfig(**fields, scan_unroll=fields['layers'])
        graph, params = nnx.split(FineTuningModel(config, HEAD, rngs=nnx.Rngs(0)))
        pure = nnx.to_pure_dict(params)
        prune = PruneConfig(method='movement', keep=0.15, begin=0.0, end=1.0) if is_pruned else PruneConfig()
        pruner = make_pruner(prune, pure, head_width=config.head_width, steps=STEPS)
        rule = OptimizerConfig(schedule='constant', warmup_steps=0, bias_correction=True)
        rate = prune.learning_rate if pruner else 0.0
        optimizer = make_optimizer(rule, STEPS, stacked=None, scores_rate=rate)
        scores = None if pruner is None else pruner.initial_scores(jax.random.key(0))
        self.state = initial_state(pure, optimizer, seed=0, scores=scores)
        widths = config.width, config.width
        objective = Distillation(FineTuning(HEAD), distill, (), widths) if distill else FineTuning(HEAD)
        parts = parts_of(self.state, pruner=pruner)
        self.program = jax.jit(make_train_step(graph, objective, optimizer, parts=parts), donate_argnums=0)

    def step(self, batch: dict[str, Any]) -> None:
        """One step, waited for."""
        self.state, metrics = self.program(self.state, batch)
        assert np.isfinite(float(metrics['loss']))


def steps_of(shape: dict[str, Any]) -> dict[str, Step]:
    """A function for each way, that takes one step and waits for it."""
    fields, rows, length = shape['model'], shape['rows'], shape['length']
    rng = np.random.default_rng(0)
    tokens_BL = rng.integers(5, fields['vocab_size'], (rows, length)).astype(np.int32)
    batch = {
        'tokens': jnp.asarray(tokens_BL),
        'segments': jnp.ones((rows, length), jnp.int32),
        'token_types': jnp.zeros((rows, length), jnp.int32),
        'label': jnp.asarray(np.arange(rows) % 2, jnp.int32),
        'index': jnp.arange(rows, dtype=jnp.int32),
        'weights': jnp.ones(rows, jnp.float32),
    }
    small = fields | {'layers': shape['student_layers']}
    distill = DistillConfig(teacher='a', temperature=2.0, labels=0.5, soft=0.5)
    teacher = FineTuningModel(ModelConfig(**fields), HEAD, rngs=nnx.Rngs(1))
    graph, params = nnx.split(teacher)
    graph, laid_out = for_inference(graph, nnx.to_pure_dict(params))
    say = jax.jit(lambda params, batch: nnx.merge(graph, params).outputs(batch)['logits'])
    known = batch | {'teacher_logits': say(laid_out, batch)}
    plain, movement = Trained(fields), Trained(fields, is_pruned=True)
    qat, student = Trained(fields | {'quantization': 'int8'}), Trained(small)
    live, kept = Trained(small, distill=distill), Trained(small, distill=distill)
    return {
        'plain': lambda: plain.step(batch),
        'movement': lambda: movement.step(batch),
        'qat': lambda: qat.step(batch),
        'student': lambda: student.step(batch),
        'teacher': lambda: jax.block_until_ready(say(laid_out, batch)),
        'live': lambda: live.step(batch | {'teacher_logits': say(laid_out, batch)}),
        'kept': lambda: kept.step(known),
    }


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Median milliseconds of a step of each way; the ways take turns, step by step.

    Args:
        shape: 'model' (fields of `ModelConfig`), 'student_layers', 'rows', 'length' and 'steps'.
    """
    steps = steps_of(shape)
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(shape['steps']):
        for way, step in steps.items():
            start = time.perf_counter()
            step()
            times[way].append(time.perf_counter() - start)
    milliseconds = {way: 1e3 * statistics.median(found) for way, found in times.items()}
    return {'name': f'efficient_attention, jax {jax.__version__}', 'milliseconds': milliseconds}


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))
