"""The `text_to_text` part of `scripts/benchmark.py`: an encoder-decoder trained and used, ours and PyTorch's.

`train`: a step of T5-small, dropout at its places, AdamW, 16 pairs of 64 and 32 tokens. `greedy`: texts of 64 tokens
from one source of 64, `beam`: with 4 beams from 16 sources; by a T5-small of random parameters that both sides read
from one Hugging Face folder, without an end symbol, so that every text has all its tokens. `translate`: a file by the
model of `--model`, which is exported to such a folder, by beam search with the score log-probability / length^alpha.

The peer is transformers, `generate` where it writes. A file is searched by its default rule of when a text is done, or
with `--stop exact` by the one that loses nothing, on both sides. Every measurement is a process of its own, and the
first call, in which ours compiles, is not among those whose median counts. Ratios above 1 mean that ours is faster, by
the time that passed and by the CPU time, which on a busy machine says more. That of memory is ours over the peer's,
both at their largest. `equal` is the share of texts that are the same on both sides.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.flags import define_choices, define_model, define_path
from efficient_attention.errors import InputError
from efficient_attention.models.text_to_text_sizes import t5_fields

ROOT = Path(__file__).resolve().parents[2]
T5_SMALL = t5_fields('small')
# With words of deviation 1 a decoder of random layers repeats the word that it reads.
WRITER = T5_SMALL | {'init_std': 0.1}
PARTS: dict[str, dict[str, Any]] = {
    'train': {'program': 'train', 'model': T5_SMALL, 'rows': 16, 'source': 64, 'target': 32},
    'greedy': {'program': 'generate', 'model': WRITER, 'rows': 1, 'source': 64, 'target': 64, 'beams': 1},
    'beam': {'program': 'generate', 'model': WRITER, 'rows': 16, 'source': 64, 'target': 64, 'beams': 4},
    'translate': {'program': 'translate'},
}
UNITS = {'train': 'tokens', 'greedy': 'tokens', 'beam': 'tokens', 'translate': 'texts'}
SIDES = ('ours', 'peer')
STOPS = ('exact', 'early')  # of `Search`, which would load JAX here
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]


def define_flags(options: flags.FlagValues) -> None:
    """The flags of the command."""
    define_choices('parts', tuple(PARTS), 'What is measured', options)
    define_model(options)  # for the part translate
    define_path('input', 'Texts to translate, one a line, plain or .gz.', None, options)
    flags.DEFINE_integer('beams', 5, 'Of the part translate.', flag_values=options)
    flags.DEFINE_float('alpha', 1.0, 'Of the length penalty of the part translate.', flag_values=options)
    flags.DEFINE_enum('stop', 'early', STOPS, 'When a search ends, on both sides.', flag_values=options)
    flags.DEFINE_integer('rows', 32, 'Texts of a batch of the part translate.', flag_values=options)
    flags.DEFINE_integer('extra', 50, 'Most tokens of a target beyond those of its source.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes of each side and part.', flag_values=options)
    flags.DEFINE_integer('calls', 5, 'Timed calls a process; of the part translate one.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError where a number cannot be, or the part translate lacks its model or its texts."""
    for name in ('beams', 'rows', 'rounds', 'calls'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    if 'translate' not in options.parts:
        return
    for name in ('model', 'input'):
        path = options[name].value
        if path is None or not path.exists():
            said = f'--{name} {path}: there is no such path' if path else f'--parts translate needs --{name}'
            raise InputError(f'{said}; the other parts are train,greedy,beam')


def programs(python: list[str], peers_python: Path) -> dict[str, list[str]]:
    """The program of each side."""
    ours = [*python, str(ROOT / 'scripts/benchmarks/measure_text_to_text.py')]
    return dict(
        zip(SIDES, (ours, [str(peers_python), str(ROOT / 'scripts/benchmarks/peers/text_to_text.py')]), strict=True)
    )


def measure(options: flags.FlagValues, commands: dict[str, list[str]], run: Run) -> Iterator[dict[str, Any]]:
    """Both sides, taking turns, for each part; after each, the figures so far.

    Args:
        options: of the command line.
        commands: the programs of the sides.
        run: what a program prints for a shape.
    """
    report: dict[str, Any] = {'parts': {}}
    titles = f'{"ours, a second":>26} {"peer, a second":>26} {"ratio":>19} {"of CPU time":>12} {"of memory":>10}'
    print(f'{"part":>9} {titles}  equal')
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            shape = shape_of(part, options, Path(folder) / part)
            if 'folder' in shape:
                run(commands['ours'], shape | {'program': 'write'})
            row = compare(shape, options.rounds, commands, run)
            report['parts'][part] = {name: shape[name] for name in shape if name != 'folder'} | row
            print(line_of(part, row))
            yield report


def shape_of(part: str, options: flags.FlagValues, folder: Path) -> dict[str, Any]:
    """What the programs get; `folder` is where the model of a part that writes is to be."""
    shape = PARTS[part] | {'calls': options.calls}
    if part == 'translate':
        given = {name: options[name].value for name in ('beams', 'alpha', 'stop', 'rows', 'extra')}
        shape |= given | {'run': str(options.model), 'input': str(options.input), 'calls': 1}
    return shape if part == 'train' else shape | {'folder': str(folder)}


def compare(shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run) -> dict[str, Any]:
    """The figures of each side, their ratios, those of times by round, and the share of equal texts."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    for number in range(rounds):
        for side in commands if number % 2 == 0 else reversed(commands):
            runs[side].append(run(commands[side], shape))
    ratios: dict[str, list[float]] = {}
    for name in ('seconds', 'cpu_seconds'):
        times = {side: [statistics.median(one[name]) for one in found] for side, found in runs.items()}
        ratios[name] = [peer / ours for ours, peer in zip(times['ours'], times['peer'], strict=True)]
    made = [runs[side][0].pop('made', []) for side in commands]
    sides = {side: summary(found) for side, found in runs.items()}
    return sides | {
        'ratio': statistics.median(ratios['seconds']),
        'ratio_range': [min(ratios['seconds']), max(ratios['seconds'])],
        'cpu_ratio': statistics.median(ratios['cpu_seconds']),
        'memory': sides['ours']['peak_bytes'] / sides['peer']['peak_bytes'],
        'equal': statistics.mean(one == other for one, other in zip(*made, strict=True)) if made[0] else None,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Units/s of the median call of each process, the median of them, and medians of the other figures."""
    rates = [one['units'] / statistics.median(one['seconds']) for one in runs]
    figures = {
        name: statistics.median(one[name] for one in runs) for name in ('first_seconds', 'baseline_bytes', 'peak_bytes')
    }
    return {'name': runs[0]['name'], 'units_per_second': statistics.median(rates), 'rates': rates} | figures


def line_of(part: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = []
    for side in SIDES:
        own = row[side]
        cells.append(f'{own["units_per_second"]:,.1f} ({min(own["rates"]):,.1f} to {max(own["rates"]):,.1f})')
    low, high = row['ratio_range']
    ratio = f'{row["ratio"]:.2f} ({low:.2f} to {high:.2f})'
    equal = '' if row['equal'] is None else f'{row["equal"]:.3f}'
    ratios = f'{ratio:>19} {row["cpu_ratio"]:>12.2f} {row["memory"]:>10.2f}'
    return f'{part:>9} {cells[0]:>26} {cells[1]:>26} {ratios}  {equal} {UNITS[part]}'
