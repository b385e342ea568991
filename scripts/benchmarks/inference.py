"""The `infer` part of `scripts/benchmark.py`: what a call of an encoder takes, ours and what users would write else.

Four sides get rows of random ids of one length: ours with the parameters laid out for inference, ours with the stacked
parameters of training, an encoder in plain Flax NNX (`peers/nnx_inference.py`), and transformers' BertModel in PyTorch
(`peers/bert_inference.py`). The ratio is that of our time to the faster peer's of the same round: below 1 ours is
faster. Compiling is timed apart. Memory is what a program holds beside its arguments and results; PyTorch tells none.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.flags import define_choices, define_integers, define_length
from efficient_attention.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = {'vocab_size': 30_522}
MODELS = {
    'bert_base': {'layers': 12, 'width': 768, 'heads': 12, 'feed_forward_width': 3072, **VOCABULARY},
    '4x312': {'layers': 4, 'width': 312, 'heads': 12, 'feed_forward_width': 1200, **VOCABULARY},
}
SIDES = ('ours', 'stacked', 'nnx', 'torch')
PEERS = ('nnx', 'torch')
MEBIBYTE = 2**20
CELL = 44  # columns of a side in the table
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]


def define_flags(options: flags.FlagValues) -> None:
    """The flags of the command."""
    define_choices('models', tuple(MODELS), 'Encoders', options)
    define_integers('rows', (1, 8), 'Rows of a call', options)
    define_length(128, 'Tokens a row.', options)
    flags.DEFINE_integer('rounds', 3, 'Processes of each side and shape.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError where a number cannot be."""
    if options.rounds < 1:
        raise InputError(f'--rounds is {options.rounds}; it must be at least 1')
    if not 1 <= options.length <= 512:
        raise InputError(f'--length is {options.length}; it must be from 1 to 512, the positions of the model')
    for rows in options.rows:
        if rows < 1:
            raise InputError(f'--rows has {rows}; each must be at least 1')


def programs(python: list[str], peers_python: Path) -> dict[str, list[str]]:
    """The program of each side."""
    ours = [*python, str(ROOT / 'scripts/benchmarks/measure_inference.py')]
    nnx = [*python, str(ROOT / 'scripts/benchmarks/peers/nnx_inference.py')]
    torch = [str(peers_python), str(ROOT / 'scripts/benchmarks/peers/bert_inference.py')]
    return dict(zip(SIDES, (ours, ours, nnx, torch), strict=True))


def measure(options: flags.FlagValues, commands: dict[str, list[str]], run: Run) -> Iterator[dict[str, Any]]:
    """All sides, taking turns, for each model and number of rows; after each comparison, the figures so far.

    Args:
        options: of the command line.
        commands: the programs of the sides.
        run: what a program prints for a shape.
    """
    report: dict[str, Any] = {'length': options.length, 'models': {}}
    print(
        f'{"model":>10} {"rows":>4}'
        + ''.join(f'{f"{side}: ms, memory, compilation":>{CELL}}' for side in SIDES)
        + '  ratio'
    )
    for name in options.models:
        report['models'][name] = {}
        for rows in options.rows:
            shape = {'model': MODELS[name], 'rows': rows, 'length': options.length}
            row = compare(shape, options.rounds, commands, run)
            report['models'][name][str(rows)] = row
            print(line_of(name, rows, row))
            yield report


def compare(shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run) -> dict[str, Any]:
    """The figures of each side's processes, and our time over that of the faster peer in the same round."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    for number in range(rounds):
        for side in commands if number % 2 == 0 else reversed(commands):
            layout = 'stacked' if side == 'stacked' else 'separate'
            runs[side].append(run(commands[side], shape | {'layout': layout}))
    times = {side: [one['milliseconds'] for one in found] for side, found in runs.items()}
    best = [min(pair) for pair in zip(*(times[peer] for peer in PEERS), strict=True)]
    ratios = [ours / peer for ours, peer in zip(times['ours'], best, strict=True)]
    sides = {side: found[-1] | {'milliseconds': statistics.median(times[side])} for side, found in runs.items()}
    return sides | {'times': times, 'ratio': statistics.median(ratios), 'ratio_range': [min(ratios), max(ratios)]}


def line_of(name: str, rows: int, row: dict[str, Any]) -> str:
    """A row of the table: times, and temporary memory and seconds of compilation where they are known."""
    cells = []
    for side in SIDES:
        found, times = row[side], row['times'][side]
        said = f', {found["temporary_bytes"] / MEBIBYTE:.1f} MiB' if 'temporary_bytes' in found else ''
        said += f', {found["compile_seconds"]:.1f} s' if 'compile_seconds' in found else ''
        cells.append(f'{found["milliseconds"]:.1f} ({min(times):.1f} to {max(times):.1f}){said}')
    low, high = row['ratio_range']
    ratio = f'  {row["ratio"]:.2f} ({low:.2f} to {high:.2f})'
    return f'{name:>10} {rows:>4}' + ''.join(f'{cell:>{CELL}}' for cell in cells) + ratio
