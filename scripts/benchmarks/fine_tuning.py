"""Measures examples/s of fine-tuning and inference, in this project and in PyTorch (`scripts/benchmark.py finetune`).

Both sides get the same rows of random ids in the same batches. Row lengths are uniform between an eighth of the longest
and the longest, and each batch has rows of similar length. Our side pads a batch to one of a few lengths
(`examples.buckets`), and each length is a compiled program. The peer pads to the longest row of the batch. Both use a
padding mask. In bfloat16 our parameters stay float32, and the peer runs under `torch.autocast`. Compilation is not
timed, because it does not matter in a run of minutes.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_choices, define_integers
from efficient_attention.config.examples import BUCKETS
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.examples.batches import FeatureBatches
from efficient_attention.errors import InputError

# This is MiniLM-L6-H384-uncased; its classifier has two classes.
MODEL = {
    'layers': 6,
    'width': 384,
    'heads': 12,
    'feed_forward_width': 1536,
    'vocab_size': 30_522,
    'dropout_rate': 0.1,
}
WAYS = ('train', 'infer')
DTYPES = ('float32', 'bfloat16')
ROWS = {128: 32, 384: 16}  # {tokens in the longest row: rows per batch}
PEER = str(Path(__file__).with_name('peers') / 'fine_tuning.py')
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_integers('lengths', (128, 384), 'Tokens in the longest row', options)
    define_choices('ways', WAYS, 'Ways to measure', options)
    flags.DEFINE_enum('dtype', DTYPES[0], DTYPES, 'Dtype of activations and matrix products.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side, length and way.', flag_values=options)
    flags.DEFINE_integer('batches', 12, 'Timed batches per process.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if the value of a flag is out of range."""
    for name in ('rounds', 'batches'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    for length in options.lengths:
        if not 16 <= length <= 512:
            raise InputError(f'--lengths has {length}; it must be from 16 to 512, the positions of the model')


def batch_row_lengths(length: int, count: int) -> list[list[int]]:
    """Returns random row lengths per batch; a batch has rows of similar length, and batches are in random order."""
    rng, rows = np.random.default_rng(length), ROWS.get(length, 16)
    lengths = np.sort(rng.integers(length // 8, length + 1, rows * count)).reshape(count, rows)
    return lengths[rng.permutation(count)].tolist()


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each row length of training and of inference.

    This project and PyTorch take turns.

    Args:
        options: the command-line flags.
        run: starts a child process that takes one measurement, and returns the measured values.
    """
    commands = {'ours': CHILD, 'peer': [str(options.peers_python), PEER]}
    report: dict[str, Any] = {'model': MODEL, 'dtype': options.dtype, 'batches': options.batches, 'ways': {}}
    print(f'{"length":>6} {"way":>6} {"ours, examples/s":>26} {"peer, examples/s":>26}  ratio')
    for way in options.ways:
        report['ways'][way] = {}
        for length in options.lengths:
            shape = {'model': MODEL, 'dtype': options.dtype, 'way': way, 'length': length}
            shape['batches'] = batch_row_lengths(length, options.batches)
            row = compare(shape, options.rounds, commands, run)
            report['ways'][way][str(length)] = row
            print(table_line(length, way, row))
            yield report


def compare(shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run) -> dict[str, Any]:
    """Returns the examples/s of this project and of PyTorch in each process, and their ratio within each round."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    for number in range(rounds):
        for side in sorted(commands, reverse=number % 2 == 1):
            runs[side].append(run(commands[side], shape))
    rates = {side: [child['examples_per_second'] for child in children] for side, children in runs.items()}
    ratios = [ours / peer for ours, peer in zip(rates['ours'], rates['peer'], strict=True)]
    sides = {
        side: {'name': runs[side][0]['name'], 'examples_per_second': statistics.median(own), 'rates': own}
        for side, own in rates.items()
    }
    return sides | {'ratio': statistics.median(ratios), 'ratio_range': [min(ratios), max(ratios)]}


def table_line(length: int, way: str, row: dict[str, Any]) -> str:
    """Returns the line of the printed table with the examples/s of both implementations and their ratio."""
    cells = []
    for side in ('ours', 'peer'):
        own = row[side]
        cells.append(f'{own["examples_per_second"]:,.1f} ({min(own["rates"]):,.1f} to {max(own["rates"]):,.1f})')
    low, high = row['ratio_range']
    return f'{length:>6} {way:>6} {cells[0]:>26} {cells[1]:>26}  {row["ratio"]:.2f} ({low:.2f} to {high:.2f})'


# ---- The functions below take one measurement, in a separate process. ----


def padded_batches(shape: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """Returns batches of random token ids, padded in the same way as in fine-tuning and inference of this project."""
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
        batches.make_batch(np.arange(start, start + rows), HostBatchShard(rows, 0, 1))
        for start in range(0, len(features), rows)
    ]


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures the examples/s over all batches, after the programs of all batch lengths have been compiled."""
    import jax
    from flax import nnx

    from efficient_attention.config.head import HeadConfig
    from efficient_attention.config.model import ModelConfig
    from efficient_attention.inference.evaluate import make_output_step
    from efficient_attention.models.fine_tuning import FineTuningModel
    from efficient_attention.objectives.fine_tuning import FineTuning
    from efficient_attention.training.optimizer import make_optimizer
    from efficient_attention.training.state import initial_state
    from efficient_attention.training.step import make_train_step

    head = HeadConfig(kind='sequence')
    model = shape['model'] | {'attention_dropout_rate': shape['model']['dropout_rate'], 'activation': 'gelu_erf'}
    config = ModelConfig(**model, dtype=shape['dtype'], scan_unroll=model['layers'])
    graph, params = nnx.split(jax.jit(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0)))())
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
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
