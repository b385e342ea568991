"""One process, one measurement: fine-tuning steps, or inference, of this project's BERT classifier.

`scripts/benchmark.py` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import json
import sys
import time
from typing import Any

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.examples import BUCKETS
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.data.batching.host_block import HostBlock
from efficient_attention.data.examples.batches import FeatureBatches
from efficient_attention.inference.evaluate import make_output_step
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.objectives.fine_tuning import FineTuning
from efficient_attention.training.optimizer import make_optimizer
from efficient_attention.training.state import initial_state
from efficient_attention.training.step import make_train_step


def padded_batches(shape: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """The batches as training and inference get them."""
    rng = np.random.default_rng(0)
    features = [
        {
            'tokens': rng.integers(5, shape['model']['vocab_size'], length).astype(np.int32),
            'token_types': np.zeros(length, np.int32),
            'label': np.int32(length % 2),
        }
        for lengths in shape['batches']
        for length in lengths
    ]
    rows = len(shape['batches'][0])
    batches = FeatureBatches(features, BUCKETS, shape['length'], rows, pad=0)
    return [
        batches.batch(np.arange(start, start + rows), HostBlock(rows, 0, 1)) for start in range(0, len(features), rows)
    ]


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Examples/s over all batches, after each of their lengths was compiled."""
    head = HeadConfig(kind='sequence')
    model = shape['model'] | {'attention_dropout_rate': shape['model']['dropout_rate'], 'activation': 'gelu_erf'}
    config = ModelConfig(**model, dtype=shape['dtype'], scan_unroll=model['layers'])
    graph, params = nnx.split(FineTuningModel(config, head, rngs=nnx.Rngs(0)))
    objective = FineTuning(head)
    optimizer_config = OptimizerConfig(schedule='constant', warmup_steps=0, bias_correction=True, clip_norm=0.0)
    optimizer = make_optimizer(optimizer_config, total_steps=1000, stacked=None)
    state = initial_state(nnx.to_pure_dict(params), optimizer, seed=0)
    step = jax.jit(make_train_step(graph, objective, optimizer), donate_argnums=0)
    infer = jax.jit(make_output_step(graph, objective))
    batches = padded_batches(shape)
    one_a_length = list({batch['tokens'].shape: batch for batch in batches}.values())
    if shape['way'] == 'train':
        for batch in one_a_length:
            state, _ = step(state, batch)
        jax.block_until_ready(state)
        start = time.perf_counter()
        for batch in batches:
            state, metrics = step(state, batch)
            assert np.isfinite(float(metrics['loss']))
        jax.block_until_ready(state)
    else:
        jax.block_until_ready([infer(state.params, batch) for batch in one_a_length])
        start = time.perf_counter()
        for batch in batches:
            assert np.isfinite(infer(state.params, batch)[2]['logits']).all()
    seconds = time.perf_counter() - start
    examples = sum(map(len, shape['batches']))
    return {'name': f'efficient_attention, jax {jax.__version__}', 'examples_per_second': examples / seconds}


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))
