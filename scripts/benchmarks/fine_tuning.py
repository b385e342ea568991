"""The `finetune` part of `scripts/benchmark.py`: examples/s of fine-tuning and of inference, ours and PyTorch's.

Both sides get the same rows of random ids in the same batches. Their lengths are spread evenly from an eighth of the
longest to the longest, and rows of similar length come together. Ours pads a batch to one of a few lengths
(`examples.buckets`), each of which is a compiled program; the peer pads to the longest row of the batch. Both have a
padding mask. In bfloat16 ours has float32 parameters, and the peer runs under `torch.autocast`. What is compiled first
is not timed: a run of minutes does not notice it.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_choices, define_integers
from efficient_attention.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
# MiniLM-L6-H384-uncased with two classes.
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
ROWS = {128: 32, 384: 16}  # of a batch
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]


def define_flags(options: flags.FlagValues) -> None:
    """The flags of the command."""
    define_integers('lengths', (128, 384), 'Tokens of the longest row', options)
    define_choices('ways', WAYS, 'What is measured', options)
    flags.DEFINE_enum('dtype', DTYPES[0], DTYPES, 'Of activations and products.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes of each side, length and way.', flag_values=options)
    flags.DEFINE_integer('batches', 12, 'Timed batches a process.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError where a number cannot be."""
    for name in ('rounds', 'batches'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    for length in options.lengths:
        if not 16 <= length <= 512:
            raise InputError(f'--lengths has {length}; it must be from 16 to 512, the positions of the model')


def batches_of(length: int, count: int) -> list[list[int]]:
    """The row lengths of each batch, rows of similar length together, batches in random order."""
    rng, rows = np.random.default_rng(length), ROWS.get(length, 16)
    lengths = np.sort(rng.integers(length // 8, length + 1, rows * count)).reshape(count, rows)
    return lengths[rng.permutation(count)].tolist()


def measure(options: flags.FlagValues, commands: dict[str, list[str]], run: Run) -> Iterator[dict[str, Any]]:
    """Both sides, taking turns, for each length and way; after each comparison, the figures so far.

    Args:
        options: of the command line.
        commands: the programs of 'ours' and 'peer'.
        run: what a program prints for a shape.
    """
    report: dict[str, Any] = {'model': MODEL, 'dtype': options.dtype, 'batches': options.batches, 'ways': {}}
    print(f'{"length":>6} {"way":>6} {"ours, examples/s":>26} {"peer, examples/s":>26}  ratio')
    for way in options.ways:
        report['ways'][way] = {}
        for length in options.lengths:
            shape = {'model': MODEL, 'dtype': options.dtype, 'way': way, 'length': length}
            shape['batches'] = batches_of(length, options.batches)
            row = compare(shape, options.rounds, commands, run)
            report['ways'][way][str(length)] = row
            print(line_of(length, way, row))
            yield report


def compare(shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run) -> dict[str, Any]:
    """The rates of each side's processes and the ratios of those of the same round."""
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


def line_of(length: int, way: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = []
    for side in ('ours', 'peer'):
        own = row[side]
        cells.append(f'{own["examples_per_second"]:,.1f} ({min(own["rates"]):,.1f} to {max(own["rates"]):,.1f})')
    low, high = row['ratio_range']
    return f'{length:>6} {way:>6} {cells[0]:>26} {cells[1]:>26}  {row["ratio"]:.2f} ({low:.2f} to {high:.2f})'


def programs(python: list[str], peers_python: Path) -> dict[str, list[str]]:
    """The programs of both sides."""
    return {
        'ours': [*python, str(ROOT / 'scripts/benchmarks/measure_fine_tuning.py')],
        'peer': [str(peers_python), str(ROOT / 'scripts/benchmarks/peers/bert_fine_tuning.py')],
    }
