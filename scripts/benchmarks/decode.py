"""The `decode` part of `scripts/benchmark.py`: tokens/s of predicting token by token, with and without a memory.

A comparison has two ways of predicting the same tokens from the same context: a fast one that keeps something, and a
slow one that reads the context again for every token: generation with a cache, and evaluation with segment memory.
Every (mechanism, context, way) is a process of its own.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.flags import define_choices, define_integers
from efficient_attention.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
MEBIBYTE = 2**20
# configs/lm/enwik8_small.py without its dropout.
MODEL = {
    'layers': 4,
    'width': 128,
    'heads': 4,
    'vocab_size': 256,
    'norm': 'pre',
    'positions': 'none',
    'rotary': True,
    'dropout_rate': 0.0,
    'attention_dropout_rate': 0.0,
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two ways of measure_decoding.py, for some mechanisms (name -> fields of ModelConfig) and contexts."""

    fast: str
    slow: str
    sides: dict[str, dict[str, Any]]
    contexts: tuple[int, ...]  # positions that a prediction may read


CACHE = Comparison(
    fast='cached',
    slow='recomputed',
    sides={
        'causal': {'attention': 'causal'},
        'window': {'attention': 'causal & window(64)'},
        'fixed': {'attention': 'sparse_fixed(64, 8)'},
        'strided': {'attention': 'sparse_strided(64)'},
        'favor': {'attention': 'favor(128, causal=True)'},
    },
    contexts=(512, 4096),
)
# Dai et al. 2019, arXiv 1901.02860, section 4.5: 363 to 1,874 times slower without memory at these lengths, in a model
# of 24 layers on a GPU.
MEMORY = Comparison(
    fast='memory',
    slow='sliding',
    sides={'transformer_xl': {'attention': 'causal', 'relative': 'transformer_xl', 'rotary': False}},
    contexts=(800, 1800, 2800, 3800),
)
COMPARISONS = {'cache': CACHE, 'memory': MEMORY}

Figures = dict[str, dict[int, dict[str, Any]]]  # side, context, what `compare` returns
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]  # starts a child process, returns its figures


def define_flags(options: flags.FlagValues) -> None:
    """The flags of the command."""
    sides = list(dict.fromkeys(side for comparison in COMPARISONS.values() for side in comparison.sides))
    define_choices('parts', list(COMPARISONS), 'Comparisons', options)
    define_choices('sides', sides, 'Mechanisms', options)
    define_integers('contexts', None, 'Positions before a token; those of the part by default', options)
    flags.DEFINE_integer('rounds', 1, 'Processes of each row.', flag_values=options)
    flags.DEFINE_integer('calls', 10, 'Timed calls a process.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError on numbers that are none, and on a part with nothing to measure."""
    for name in ('contexts', 'rounds', 'calls'):
        given = options[name].value
        least = min(given) if isinstance(given, list) else given
        if least is not None and least < 1:
            raise InputError(f'--{name} {least}: it must be at least 1')
    for part in options.parts:
        if not set(options.sides) & set(COMPARISONS[part].sides):
            raise InputError(f'--parts {part} has none of --sides {",".join(options.sides)}; name the parts you want')


def measure(options: flags.FlagValues, command: list[str], run: Run) -> Iterator[dict[str, Any]]:
    """After every context of every comparison, the report on all so far."""
    report: dict[str, Any] = {'model': MODEL}
    for part in options.parts:
        comparison = COMPARISONS[part]
        figures: Figures = {side: {} for side in options.sides if side in comparison.sides}
        report[part] = {'fast': comparison.fast, 'slow': comparison.slow, 'sides': figures}
        print_titles(comparison)
        for context in sorted(options.contexts or comparison.contexts):
            for side in figures:
                model = MODEL | comparison.sides[side]
                shape = {'model': model, 'context': context, 'calls': options.calls}
                figures[side][context] = compare(comparison, shape, options.rounds, lambda shape: run(command, shape))
                print_row(context, side, figures[side][context])
            yield report


def compare(
    comparison: Comparison, shape: dict[str, Any], rounds: int, run: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Median and range of tokens/s of both ways, which take turns, and the ratio of fast to slow, median and range."""
    children: dict[str, list[dict[str, Any]]] = {comparison.fast: [], comparison.slow: []}
    for number in range(rounds):
        for way in list(children)[:: -1 if number % 2 else 1]:
            children[way].append(run(shape | {'way': way}))
    rates = {way: [child['tokens_per_second'] for child in runs] for way, runs in children.items()}
    by_round = [fast / slow for fast, slow in zip(rates[comparison.fast], rates[comparison.slow], strict=True)]
    return {
        'tokens_per_second': {way: statistics.median(values) for way, values in rates.items()},
        'range': {way: [min(values), max(values)] for way, values in rates.items()},
        'state_bytes': children[comparison.fast][0]['state_bytes'],
        'ratio': statistics.median(by_round),
        'ratio_range': [min(by_round), max(by_round)],
    }


def print_titles(comparison: Comparison) -> None:
    """The first line of a table."""
    ways = f'{comparison.fast + " tokens/s":>22} {comparison.slow + " tokens/s":>22}'
    print(f'{"context":>7} {"side":<10} {ways} {"ratio":>8} {"(range)":>18} {"state MiB":>10}')


def print_row(context: int, side: str, row: dict[str, Any]) -> None:
    """One line of the table."""
    ways = ' '.join(f'{rate:>22,.1f}' for rate in row['tokens_per_second'].values())
    between = '{:.1f} to {:.1f}'.format(*row['ratio_range'])
    state = row['state_bytes'] / MEBIBYTE
    print(f'{context:>7} {side:<10} {ways} {row["ratio"]:>8.1f} {between:>18} {state:>10.2f}', flush=True)


def program(python: list[str]) -> list[str]:
    """The program that measures one row."""
    return [*python, str(ROOT / 'scripts/benchmarks/measure_decoding.py')]
