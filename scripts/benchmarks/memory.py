"""Measures memory and time of a decoder's training step, for several models (`scripts/benchmark.py memory`).

`depth`: layers that store activations, recompute them (remat) or recover them (reversible), at several depths, with and
without feed-forward and loss in chunks. `patterns`: fixed and strided sparse attention against dense causal attention,
as in table 2 of Child et al. 2019 (arXiv 1904.10509), at a width that is feasible on a CPU. `output`: one softmax over
many words against an adaptive softmax, with the loss computed in chunks. `compression`: a memory of 1,280 tokens
against a memory of 256 tokens and 256 compressed slots of 4 older tokens each. Both memories reach equally far, and
both are full.

The compared models are called sides. Each line of a table comes from a separate process that compiles the whole step,
AdamW included. The compiler states the temporary bytes: they include gradients and updates, but not parameters and
moments. Real steps then give the seconds and, as a check of the compiler, the growth of resident memory.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from efficient_attention.atomic_files import atomic_file
from efficient_attention.commands.flags import define_choices, define_integers, define_path
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError
from scripts.benchmarks.process_measurements import read_process_status_bytes, reset_peak_memory

if TYPE_CHECKING:  # at run time, only the child process imports these modules
    import jax

    from efficient_attention.config.model import ModelConfig
    from efficient_attention.training.state import TrainState
    from efficient_attention.training.step import StepFn

MEBIBYTE = 2**20
# These model fields make the feed-forward layers and the loss compute this many positions at a time.
CHUNKS = {'feed_forward_chunk': 128, 'loss_chunk': 128}
# The model has rotary positions, because the size of a position table would depend on the length.
MODEL = {
    'heads': 2,
    'norm': 'pre',
    'positions': 'none',
    'rotary': True,
    'attention_dropout_rate': 0.0,
}


@dataclasses.dataclass(frozen=True)
class MemoryComparison:
    """One table of the memory benchmark: models with several sizes, each compared with the first model of that size."""

    axis: str  # the model field or dimension that the sizes set: 'layers', 'length' or 'vocab_size'
    sides: dict[str, dict[str, Any]]  # {name of a compared model: its fields of ModelConfig}
    model: dict[str, Any]  # fields of ModelConfig that all compared models share
    rows: int  # rows per batch
    sizes: tuple[int, ...]
    small: tuple[int, ...]  # the sizes that are measured with the flag --quick
    length: int = 0  # positions per row; 0 if `sizes` holds the lengths

    def benchmark_shape(self, side: str, size: int, steps: int) -> dict[str, Any]:
        """Returns the model fields, rows, length and steps of one measurement, as input of a child process."""
        model = MODEL | self.model | self.sides[side]
        model |= {self.axis: size} if self.axis != 'length' else {}
        length = size if self.axis == 'length' else self.length
        return {'model': model, 'rows': self.rows, 'length': length, 'steps': steps}


DEPTH = MemoryComparison(
    axis='layers',
    sides={
        'plain': {},
        'remat': {'remat': 'full'},
        'remat, chunks': {'remat': 'full'} | CHUNKS,
        'reversible': {'stack': 'reversible'},
        'reversible, chunks': {'stack': 'reversible'} | CHUNKS,
    },
    model={'width': 64, 'vocab_size': 4096, 'attention': 'causal', 'dropout_rate': 0.1},
    rows=8,
    length=1024,
    sizes=(6, 12, 24, 48),
    small=(1, 2),
)
PATTERNS = MemoryComparison(
    axis='length',
    sides={
        'dense': {'attention': 'causal'},
        'fixed': {'attention': 'sparse_fixed(128, 32)'},
        'strided': {'attention': 'sparse_strided(128)'},
    },
    model={'layers': 2, 'width': 128, 'vocab_size': 256, 'dropout_rate': 0.0},
    rows=1,
    sizes=(12288,),
    small=(256,),
)
OUTPUT = MemoryComparison(
    axis='vocab_size',
    sides={
        'one softmax': {},
        'chunks': {'loss_chunk': 64},
        'cutoffs, chunks': {'loss_chunk': 64, 'adaptive_cutoffs': (5000, 20_000), 'adaptive_divisor': 1},
        'cutoffs / 4, chunks': {'loss_chunk': 64, 'adaptive_cutoffs': (5000, 20_000), 'adaptive_divisor': 4},
    },
    model={'layers': 1, 'width': 256, 'attention': 'causal', 'dropout_rate': 0.0},
    rows=4,
    length=512,
    sizes=(50_000,),
    small=(25_000,),
)
# The model is the decoder `compressive` of configs/lm/common.py, with segments as long as its memory of tokens.
SLOTS = {'memory_length': 256, 'compressed_length': 256, 'compression_rate': 4}
COMPRESSION = MemoryComparison(
    axis='length',
    sides={
        'plain': {},
        'mean': SLOTS | {'compression': 'mean'},
        'convolution, loss': SLOTS | {'compression': 'convolution', 'reconstruction_weight': 1.0},
    },
    model={
        'layers': 4,
        'width': 128,
        'heads': 4,
        'feed_forward_width': 192,
        'vocab_size': 320,
        'attention': 'causal',
        'relative': 'transformer_xl',
        'rotary': False,
        'memory_length': 1280,
        'scan_unroll': 4,
        'dropout_rate': 0.0,
    },
    rows=4,
    sizes=(256,),
    small=(64,),
)
PARTS = {'depth': DEPTH, 'patterns': PATTERNS, 'output': OUTPUT, 'compression': COMPRESSION}
# This maps a part of the benchmark to the command-line flag that sets its sizes; other parts have fixed sizes.
SIZES = {'depth': 'layers', 'patterns': 'lengths', 'compression': 'segments'}

Figures = dict[str, dict[int, dict[str, Any]]]  # {compared model: {size: medians of time and memory}}
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]  # starts a child process and returns its measurements
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_choices('parts', list(PARTS), 'Parts to measure', options)
    define_integers('layers', None, f'Depths of `depth`; by default {DEPTH.sizes}', options)
    define_integers('lengths', None, f'Positions of `patterns`; by default {PATTERNS.sizes}', options)
    segments = f'Positions of a segment of `compression`; by default {COMPRESSION.sizes}'
    define_integers('segments', None, segments, options)
    ids = f'Vocabulary size of `depth`; by default {DEPTH.model["vocab_size"]}.'
    flags.DEFINE_integer('vocab_size', None, ids, flag_values=options)
    flags.DEFINE_integer('rounds', 1, 'Processes per row.', flag_values=options)
    flags.DEFINE_integer('steps', 3, 'Timed steps per process; 0 = only compile.', flag_values=options)
    quick = 'Smallest sizes and one step, to test the command.'
    flags.DEFINE_bool('quick', False, quick, flag_values=options)
    define_path('plot', 'File for a plot, .png or .svg.', options=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a flag has an invalid size, or has no effect on the chosen parts."""
    for part, name in (*SIZES.items(), ('depth', 'vocab_size')):
        if options[name].value is not None and part not in options.parts:
            raise InputError(f'--{name} has no effect without --parts {part}')
    for name in (*SIZES.values(), 'vocab_size', 'rounds', 'steps'):
        least = 0 if name == 'steps' else 1
        given = options[name].value
        lowest = min(given) if isinstance(given, list) else given
        if lowest is not None and lowest < least:
            raise InputError(f'--{name} {lowest}: it must be at least {least}')
    rate = SLOTS['compression_rate']
    for segment in options.segments or ():
        if segment % rate:
            raise InputError(f'--segments {segment}: it must be a multiple of {rate}, the tokens of a slot')
    if options.plot and options.plot.suffix not in ('.png', '.svg'):
        raise InputError(f'--plot {options.plot}: it must end in .png or .svg')


def chosen_parts(options: flags.FlagValues) -> dict[str, MemoryComparison]:
    """Returns the chosen parts of the benchmark, with the sizes from the command line."""
    parts = {}
    for name in options.parts:
        part = PARTS[name]
        if options.quick:
            part = dataclasses.replace(part, sizes=part.small, rows=1, length=min(part.length, 64))
        if options.vocab_size and name == 'depth':
            part = dataclasses.replace(part, model=part.model | {'vocab_size': options.vocab_size})
        sizes = getattr(options, SIZES[name]) if name in SIZES else None
        parts[name] = dataclasses.replace(part, sizes=tuple(sorted(set(sizes or part.sizes))))
    return parts


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each size of each part; plots the report at the end."""
    report: dict[str, Any] = {}
    steps = min(options.steps, 1) if options.quick else options.steps
    parts = chosen_parts(options)
    for name, part in parts.items():
        figures: Figures = {side: {} for side in part.sides}
        print_comparison_header(part)
        for size in part.sizes:
            for side, children in measure_sides_in_turns(
                part, size, steps, options.rounds, lambda shape: run(CHILD, shape)
            ):
                figures[side][size] = summary(children)
                print_row(size, side, figures[side][size])
            report[name] = make_report(part, figures)
            yield report
        print_report(report[name])
    if options.plot:
        plot_figure(parts, report, options.plot)


def measure_sides_in_turns(
    part: MemoryComparison, size: int, steps: int, rounds: int, run: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Measures all compared models of one size in turns; returns each model's measurements, one per round.

    Every other round runs in reverse order, so that a slow minute of the machine affects all models.
    """
    children: dict[str, list[dict[str, Any]]] = {side: [] for side in part.sides}
    for number in range(rounds):
        for side in sorted(children, key=list(children).index, reverse=number % 2 == 1):
            children[side].append(run(part.benchmark_shape(side, size, steps)))
    return list(children.items())


def summary(children: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines the measurements of several processes of one model: medians over the processes.

    Each process counts with its median step. A value that was not measured is None.
    """
    row = {name: children[0][name] for name in ('name', 'parameters', 'temporary_bytes', 'argument_bytes')}
    medians = [statistics.median(child['seconds']) for child in children if child.get('seconds')]
    peaks = [child['peak_bytes'] for child in children if child.get('peak_bytes') is not None]
    row['seconds'] = statistics.median(medians) if medians else None
    row['range'] = [min(medians), max(medians)] if medians else None
    return row | {'peak_bytes': statistics.median(peaks) if peaks else None}


def make_report(part: MemoryComparison, figures: Figures) -> dict[str, Any]:
    """Returns the report of one part: settings, measurements, ratios to the first model, and growth with size."""
    sides = {side: by_size for side, by_size in figures.items() if by_size}
    return {
        'axis': part.axis,
        'shape': {'model': MODEL | part.model, 'rows': part.rows, 'length': part.length or None},
        'choices': part.sides,
        'sides': sides,
        'ratios': ratios_to_first_side(sides),
        'growth': memory_growth(sides),
    }


def ratios_to_first_side(figures: Figures) -> list[dict[str, Any]]:
    """Returns each further model's memory and time, divided by the memory and time of the first model at equal size."""
    first, *others = figures
    rows = []
    for side in others:
        for size in sorted(set(figures[side]) & set(figures[first])):
            row, yardstick = figures[side][size], figures[first][size]
            values = {
                name: row[name] / yardstick[name] if row[name] is not None and yardstick[name] else None
                for name in ('temporary_bytes', 'peak_bytes', 'seconds')
            }
            rows.append({'side': side, 'against': first, 'size': size} | values)
    return rows


def memory_growth(figures: Figures) -> dict[str, dict[int, float]]:
    """Returns how each model's temporary memory grows: at every size, divided by the memory at the smallest size.

    Models with only one measured size are left out.
    """
    return {
        side: {size: row['temporary_bytes'] / by_size[min(by_size)]['temporary_bytes'] for size, row in by_size.items()}
        for side, by_size in figures.items()
        if len(by_size) > 1
    }


def print_comparison_header(part: MemoryComparison) -> None:
    """Prints the column titles of the table of one part."""
    titles = f'{"temporary MiB":>14} {"resident MiB":>13} {"parameters MiB":>15} {"step ms":>8} {"(range)":>17}'
    print(f'{part.axis:>7} {"side":<20} {titles}')


def print_row(size: int, side: str, row: dict[str, Any]) -> None:
    """Prints the line of a table with the measurements of one model at one size."""
    resident = '' if row['peak_bytes'] is None else f'{row["peak_bytes"] / MEBIBYTE:.1f}'
    seconds = '' if row['seconds'] is None else f'{1e3 * row["seconds"]:.1f}'
    between = '' if row['range'] is None else ' to '.join(f'{1e3 * value:.1f}' for value in row['range'])
    parameters = 4 * row['parameters'] / MEBIBYTE
    temporary = row['temporary_bytes'] / MEBIBYTE
    print(
        f'{size:>7} {side:<20} {temporary:>14.1f} {resident:>13} {parameters:>15.1f} {seconds:>8} {between:>17}',
        flush=True,
    )


def print_report(report: dict[str, Any]) -> None:
    """Prints the ratios between models and the growth of memory, one line for each."""
    names = {'temporary_bytes': 'temporary memory', 'peak_bytes': 'resident memory', 'seconds': 'time'}
    for row in report['ratios']:
        parts = [f'{row[name]:.3f} x the {words}' for name, words in names.items() if row[name] is not None]
        print(f'{row["size"]:>7} {row["side"]} / {row["against"]}: {", ".join(parts)}')
    for side, by_size in report['growth'].items():
        steps = ', '.join(f'{ratio:.2f} at {size}' for size, ratio in by_size.items())
        print(f'{side}: temporary memory by {report["axis"]}, from the smallest: {steps}')


def plot_figure(parts: dict[str, MemoryComparison], report: dict[str, Any], path: Path) -> None:
    """Plots, for each part, temporary memory (lines), resident memory (crosses) and step time against size."""
    import matplotlib

    matplotlib.use('agg')
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(parts), 2, figsize=(11, 4.2 * len(parts)), layout='constrained', squeeze=False)
    for (memory, seconds), (name, part) in zip(axes, parts.items(), strict=True):
        for number, (side, by_size) in enumerate(report[name]['sides'].items()):
            color = f'C{number}'
            draw_line(memory, by_size, 'temporary_bytes', 1 / MEBIBYTE, color=color, marker='o', label=side)
            draw_line(memory, by_size, 'peak_bytes', 1 / MEBIBYTE, color=color, marker='x', linestyle='none')
            draw_line(seconds, by_size, 'seconds', 1.0, color=color, marker='o', label=side)
        memory.set(yscale='log', title=f'{name}: temporary memory, MiB (x: resident, measured)')
        seconds.set(yscale='log', title=f'{name}: training step, s')
        for axis in (memory, seconds):
            axis.set_xscale('log', base=2)
            axis.set_xticks(part.sizes, [f'{size:,}' for size in part.sizes])
            axis.set(xlabel=part.axis)
            axis.grid(visible=True, alpha=0.3)
        memory.legend(fontsize=8)
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix('.') or 'png')
    pyplot.close(figure)


def draw_line(axis: Any, by_size: dict[int, dict[str, Any]], field: str, scale: float, **style: Any) -> None:
    """Plots one measured value of a model against size; sizes without this value are left out."""
    points = [(size, scale * row[field]) for size, row in sorted(by_size.items()) if row[field] is not None]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


# ---- The functions below take one measurement, in a separate process. ----


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures a decoder's training step: the compiler's temporary bytes, and seconds and memory of real steps.

    If the decoder has memory, the memory is full. `shape` has `model` (fields of ModelConfig), `rows`, `length` and
    `steps`, the number of timed steps after an untimed one; with 0 nothing runs.
    """
    import jax

    from efficient_attention.config.model import ModelConfig

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
    # A compiled program creates the state, so that each array has a separate buffer, which donation requires.
    return result | run_steps(step, jax.jit(first_state)(), batch, shape['steps'])


def make_step(config: ModelConfig, rows: int) -> tuple[StepFn, Callable[[], TrainState]]:
    """Returns a decoder's training step with AdamW, and a function that creates the initial state, in which the segment
    memory is full.
    """
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from efficient_attention.models.decoder import Decoder
    from efficient_attention.objectives.language_modelling import LanguageModelling
    from efficient_attention.training.optimizer import STACKED_LAYERS, make_optimizer
    from efficient_attention.training.state import initial_state
    from efficient_attention.training.step import make_train_step

    objective = LanguageModelling(config)
    graph, _ = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    optimizer = make_optimizer(
        OptimizerConfig(schedule='constant', warmup_steps=0), total_steps=1000, stacked=STACKED_LAYERS
    )

    def first_state() -> TrainState:
        params = nnx.to_pure_dict(nnx.state(Decoder(config, rngs=nnx.Rngs(0))))
        # The segment memory is all ones: it belongs to segment 1 like the batch, so attention does not mask it.
        carry = jax.tree.map(jnp.ones_like, objective.initial_carry(rows))
        return initial_state(params, optimizer, seed=0, carry=carry)

    return make_train_step(graph, objective, optimizer), first_state


def random_batch(rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Returns a batch of random token ids without padding, with the next tokens as targets."""
    ids = np.random.default_rng(0).integers(0, vocab_size, (rows, length + 1), np.int32)
    whole = {'segments': np.ones((rows, length), np.int32), 'weights': np.ones((rows, length), np.float32)}
    return whole | {'tokens': ids[:, :-1], 'targets': ids[:, 1:]}


def run_steps(step: jax.stages.Compiled, state: TrainState, batch: dict[str, np.ndarray], count: int) -> dict[str, Any]:
    """Runs training steps; returns the seconds of each step after the first one, and the growth of resident memory."""
    import jax

    before = reset_peak_memory()
    seconds = []
    for _ in range(count + 1):
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - start)
    assert np.isfinite(metrics['loss'])
    return {
        'seconds': seconds[1:],
        'peak_bytes': None if before is None else read_process_status_bytes('VmHWM') - before,
    }


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
