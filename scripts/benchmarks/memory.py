"""`scripts/benchmark.py memory`: what a decoder's training step holds and costs.

`depth`: layers that keep their activations, recompute them or recover them (reversible), with and without feed-forward
and loss in chunks, at several depths. `patterns`: fixed and strided sparse attention against dense causal attention,
as in table 2 of Child et al. 2019 (arXiv 1904.10509), at a width that a CPU can bear. `output`: one softmax over many
words against the clusters of an adaptive one, where the loss is computed in chunks. `compression`: a memory of 1,280
tokens against one of 256 tokens and 256 slots of 4 older ones, which reaches as far; all of it is full.

Every row is a process of its own that compiles the whole step, AdamW included. Temporary bytes are the compiler's:
gradients and updates are among them, parameters and moments are not. Real steps then tell the seconds and, as a check
of the compiler, how far they raise the resident memory.
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

from efficient_attention.commands.flags import define_choices, define_integers, define_path
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError
from efficient_attention.whole_files import whole_file
from scripts.benchmarks.process import start_peak, status_bytes

if TYPE_CHECKING:  # the child alone needs them
    import jax

    from efficient_attention.config.model import ModelConfig
    from efficient_attention.training.state import TrainState
    from efficient_attention.training.step import StepFn

MEBIBYTE = 2**20
CHUNKS = {'feed_forward_chunk': 128, 'loss_chunk': 128}  # positions
# Rotary positions need no table, whose size would depend on the length.
MODEL = {
    'heads': 2,
    'norm': 'pre',
    'positions': 'none',
    'rotary': True,
    'attention_dropout_rate': 0.0,
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A table: one row for each side and size; every side is compared with the first of them at the same size."""

    axis: str  # what a size counts: 'layers', 'length' or 'vocab_size'
    sides: dict[str, dict[str, Any]]  # name -> fields of ModelConfig
    model: dict[str, Any]  # fields of all sides
    rows: int  # of a batch
    sizes: tuple[int, ...]
    small: tuple[int, ...]  # sizes of --quick
    length: int = 0  # positions, where sizes count something else

    def shape(self, side: str, size: int, steps: int) -> dict[str, Any]:
        """What the child process measures."""
        model = MODEL | self.model | self.sides[side]
        model |= {self.axis: size} if self.axis != 'length' else {}
        length = size if self.axis == 'length' else self.length
        return {'model': model, 'rows': self.rows, 'length': length, 'steps': steps}


DEPTH = Part(
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
PATTERNS = Part(
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
OUTPUT = Part(
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
# The decoder `compressive` of configs/lm/common.py, with segments as long as its memory of tokens.
SLOTS = {'memory_length': 256, 'compressed_length': 256, 'compression_rate': 4}
COMPRESSION = Part(
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
# The flag that names a part's sizes.
SIZES = {'depth': 'layers', 'patterns': 'lengths', 'compression': 'segments'}

Figures = dict[str, dict[int, dict[str, Any]]]  # side, size, what `summary` returns
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]  # starts a child process, returns its figures
CHILD = [sys.executable, __file__]  # measures a shape, in a process of its own


def define_flags(options: flags.FlagValues) -> None:
    """The flags of the command."""
    define_choices('parts', list(PARTS), 'What to measure', options)
    define_integers('layers', None, f'Depths of `depth`; by default {DEPTH.sizes}', options)
    define_integers('lengths', None, f'Positions of `patterns`; by default {PATTERNS.sizes}', options)
    segments = f'Positions of a segment of `compression`; by default {COMPRESSION.sizes}'
    define_integers('segments', None, segments, options)
    ids = f'Ids of `depth`; by default {DEPTH.model["vocab_size"]}.'
    flags.DEFINE_integer('vocab_size', None, ids, flag_values=options)
    flags.DEFINE_integer('rounds', 1, 'Processes of each row.', flag_values=options)
    flags.DEFINE_integer('steps', 3, 'Timed steps a process; 0 = compile alone.', flag_values=options)
    quick = 'Smallest sizes and one step: shows only that it works.'
    flags.DEFINE_bool('quick', False, quick, flag_values=options)
    define_path('plot', 'File for a picture, .png or .svg.', options=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError on sizes that are none, and on flags that have no effect."""
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


def chosen_parts(options: flags.FlagValues) -> dict[str, Part]:
    """The parts with the sizes that the command line asks for."""
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
    """After every size of every part, the report on all so far; plots it when all are done."""
    report: dict[str, Any] = {}
    steps = min(options.steps, 1) if options.quick else options.steps
    parts = chosen_parts(options)
    for name, part in parts.items():
        figures: Figures = {side: {} for side in part.sides}
        print_titles(part)
        for size in part.sizes:
            for side, children in take_turns(part, size, steps, options.rounds, lambda shape: run(CHILD, shape)):
                figures[side][size] = summary(children)
                print_row(size, side, figures[side][size])
            report[name] = make_report(part, figures)
            yield report
        print_report(report[name])
    if options.plot:
        draw(parts, report, options.plot)


def take_turns(
    part: Part, size: int, steps: int, rounds: int, run: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each side's processes; every other round goes through the sides backwards, so that a slow minute hits all."""
    children: dict[str, list[dict[str, Any]]] = {side: [] for side in part.sides}
    for number in range(rounds):
        for side in sorted(children, key=list(children).index, reverse=number % 2 == 1):
            children[side].append(run(part.shape(side, size, steps)))
    return list(children.items())


def summary(children: list[dict[str, Any]]) -> dict[str, Any]:
    """One row: medians over the processes, each of which counts with its median step; what was not measured is None."""
    row = {name: children[0][name] for name in ('name', 'parameters', 'temporary_bytes', 'argument_bytes')}
    medians = [statistics.median(child['seconds']) for child in children if child.get('seconds')]
    peaks = [child['peak_bytes'] for child in children if child.get('peak_bytes') is not None]
    row['seconds'] = statistics.median(medians) if medians else None
    row['range'] = [min(medians), max(medians)] if medians else None
    return row | {'peak_bytes': statistics.median(peaks) if peaks else None}


def make_report(part: Part, figures: Figures) -> dict[str, Any]:
    """The figures, what was measured, and the ratios that follow."""
    sides = {side: by_size for side, by_size in figures.items() if by_size}
    return {
        'axis': part.axis,
        'shape': {'model': MODEL | part.model, 'rows': part.rows, 'length': part.length or None},
        'choices': part.sides,
        'sides': sides,
        'ratios': ratios(sides),
        'growth': growth(sides),
    }


def ratios(figures: Figures) -> list[dict[str, Any]]:
    """Every side against the first at the same size: temporary and resident memory, and time."""
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


def growth(figures: Figures) -> dict[str, dict[int, float]]:
    """Each side's temporary memory at every size over that at its smallest; empty where there is one size."""
    return {
        side: {size: row['temporary_bytes'] / by_size[min(by_size)]['temporary_bytes'] for size, row in by_size.items()}
        for side, by_size in figures.items()
        if len(by_size) > 1
    }


def print_titles(part: Part) -> None:
    """The first line of a table."""
    titles = f'{"temporary MiB":>14} {"resident MiB":>13} {"parameters MiB":>15} {"step ms":>8} {"(range)":>17}'
    print(f'{part.axis:>7} {"side":<20} {titles}')


def print_row(size: int, side: str, row: dict[str, Any]) -> None:
    """One line of a table."""
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
    """Ratios and growth in lines."""
    names = {'temporary_bytes': 'temporary memory', 'peak_bytes': 'resident memory', 'seconds': 'time'}
    for row in report['ratios']:
        parts = [f'{row[name]:.3f} x the {words}' for name, words in names.items() if row[name] is not None]
        print(f'{row["size"]:>7} {row["side"]} / {row["against"]}: {", ".join(parts)}')
    for side, by_size in report['growth'].items():
        steps = ', '.join(f'{ratio:.2f} at {size}' for size, ratio in by_size.items())
        print(f'{side}: temporary memory by {report["axis"]}, from the smallest: {steps}')


def draw(parts: dict[str, Part], report: dict[str, Any], path: Path) -> None:
    """For each part temporary memory (line) and what real steps added (crosses), and the time of a step."""
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
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix('.') or 'png')
    pyplot.close(figure)


def draw_line(axis: Any, by_size: dict[int, dict[str, Any]], field: str, scale: float, **style: Any) -> None:
    """The sizes at which a field was measured."""
    points = [(size, scale * row[field]) for size, row in sorted(by_size.items()) if row[field] is not None]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


# ---- one measurement, in a process of its own ----


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Temporary bytes of the compiled step, and of real steps the seconds and the resident bytes that they add.

    A decoder with memory reads a full one.
    `shape` has `model` (fields of ModelConfig), `rows`, `length` and `steps`: timed ones, after one that is not; with 0
    nothing runs.
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
    # One program makes the state, so that each array has memory of its own, as giving it away needs.
    return result | run_steps(step, jax.jit(first_state)(), batch, shape['steps'])


def make_step(config: ModelConfig, rows: int) -> tuple[StepFn, Callable[[], TrainState]]:
    """The training step of a decoder with AdamW, and what makes its first state, in which a memory is of ones."""
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
    import jax

    before = start_peak()
    seconds = []
    for _ in range(count + 1):
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - start)
    assert np.isfinite(metrics['loss'])
    return {'seconds': seconds[1:], 'peak_bytes': None if before is None else status_bytes('VmHWM') - before}


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
