"""Measures recurrent cells against other libraries and against attention (`scripts/benchmark.py recurrent`).

`cells`: time of forward and forward + backward of each cell, against Flax's cell under `nnx.RNN`, PyTorch's cell and
our LSTM. Batch 32, width 256, length 128. `lengths`: time of forward + backward against length, at width 256, for a
cell and for full and windowed attention with its projections. `token`: time of one more token in a decoder with one
such layer, from a state or a cache, against the length of the text before it. `memory`: temporary bytes of an LSTM's
forward + backward against length, with and without recomputation in chunks.

A side is one library's cell, or a cell or attention of this project. Each measurement is a separate process, and sides
take turns. A side is skipped at a length if its time, extrapolated from the two lengths before, is above the limit.
`--plot` plots the parts `lengths` and `token` in one picture.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from efficient_attention.atomic_files import atomic_file
from efficient_attention.commands.flags import define_choices, define_integers, define_path
from efficient_attention.errors import InputError
from scripts.benchmarks.attention import extrapolated_seconds, log_log_slope
from scripts.benchmarks.decode import measure_shape as measure_token
from scripts.benchmarks.process_measurements import peak_bytes, time_calls

if TYPE_CHECKING:  # at run time, only the child process imports these modules
    from jax import Array

    from efficient_attention.config.layer import LayerConfig

CELLS = ('tanh', 'gru', 'lstm', 'sru1', 'sru2')
OF_PEERS = ('tanh', 'gru', 'lstm')  # cells that Flax NNX and PyTorch also have
ONE = {'rows': 32, 'length': 128, 'width': 256}
WINDOW = 64  # positions that a query reads on each side; in a decoder, only earlier positions
CHUNK = 32  # positions per chunk of recomputation
# LAYERS and DECODERS map the name of a recurrent cell or attention to config fields of a layer and of a decoder.
LAYERS: dict[str, dict[str, Any]] = {cell: {'cell': cell} for cell in CELLS}
LAYERS |= {'full': {'attention': 'full'}, 'window': {'attention': f'window({WINDOW})'}}
DECODERS = LAYERS | {'full': {'attention': 'causal'}, 'window': {'attention': f'causal & window({WINDOW})'}}
PARTS = ('cells', 'lengths', 'token', 'memory')
WORDS = {'forward_backward': 'a layer forward + backward', 'token': 'a token of a decoder'}

PEER = str(Path(__file__).with_name('peers') / 'recurrent.py')
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement
Figures = dict[str, dict[int, dict[str, Any]]]  # {cell or attention: {length: measurement}}


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_choices('parts', PARTS, 'Parts to measure', options)
    define_integers('lengths', [2**power for power in range(6, 14)], 'Positions', options)
    flags.DEFINE_integer('rows', 4, 'Rows, in the part lengths.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side, in the part cells.', flag_values=options)
    flags.DEFINE_integer('steps', 5, 'Timed calls per process.', flag_values=options)
    longest = 'Skip lengths whose call is expected to take longer, in the part lengths.'
    flags.DEFINE_float('max_seconds', 20.0, longest, flag_values=options)
    define_path('plot', 'File for a log-log plot of lengths and token, .png or .svg.', options=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a numeric flag is below 1, or if the chosen parts measure nothing that can be plotted."""
    if min(options.lengths) < 1:
        raise InputError(f'length {min(options.lengths)}: it must be at least 1')
    for name in ('rows', 'rounds', 'steps'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    if options.plot and options.plot.suffix not in ('.png', '.svg'):
        raise InputError(f'--plot {options.plot}: it must end in .png or .svg')
    if options.plot and not {'lengths', 'token'} & set(options.parts):
        raise InputError('--plot shows the parts lengths and token; name one of them in --parts')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each measurement; with --plot, plots the report at the
    end.

    Args:
        options: the command-line flags.
        run: starts a child process that takes one measurement, and returns the measured values.
    """
    report: dict[str, Any] = {}
    parts = {
        'cells': measure_cells,
        'lengths': measure_time_by_length,
        'token': measure_next_token_by_length,
        'memory': measure_memory,
    }
    for part in options.parts:
        for figures in parts[part](options, run):
            report[part] = figures
            yield report
    if options.plot:
        plot_figure({part: report[part]['sides'] for part in ('lengths', 'token') if part in report}, options.plot)


def measure_cells(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Measures each recurrent cell in this project, Flax NNX and PyTorch; yields the measurements so far.

    Prints the speed of each cell relative to our LSTM at the end.
    """
    commands = {'ours': CHILD, 'nnx': CHILD, 'torch': [str(options.peers_python), PEER]}
    found: dict[str, Any] = {}
    print(f'{"cell":>6} {"side":>6} {"forward ms":>11} {"forward + backward ms":>26} {"ratio of times":>16}')
    for cell in CELLS:
        sides = ('ours', 'nnx', 'torch') if cell in OF_PEERS else ('ours',)
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                shape = ONE | {'program': 'call', 'side': side, 'cell': cell, 'steps': options.steps}
                runs[side].append(run(commands[side], shape))
        found[cell] = {side: summary(children) for side, children in runs.items()}
        for side, row in found[cell].items():
            others = [] if side == 'ours' else [speed_ratio(runs[side], runs['ours'])]
            print_cell(cell, side, row, others)
        yield {'shape': ONE, 'cells': found} | lstm_time_ratios(found)
    for cell, times in lstm_time_ratios(found)['than_lstm'].items():
        print(f'{cell}: {times:.2f} times as fast as our LSTM forward + backward')


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines the measurements of several processes: the median of the median call times, and median peak memory."""
    row: dict[str, Any] = {'name': runs[0]['name']}
    for name in ('forward', 'forward_backward'):
        medians = [statistics.median(one[name]) for one in runs]
        row |= {name: statistics.median(medians), f'{name}_range': [min(medians), max(medians)]}
    return row | {'peak_bytes': statistics.median(one['peak_bytes'] for one in runs)}


def speed_ratio(others: list[dict[str, Any]], ours: list[dict[str, Any]]) -> float:
    """Returns another library's forward + backward time divided by ours: the median over rounds."""
    times = [[statistics.median(one['forward_backward']) for one in runs] for runs in (others, ours)]
    return statistics.median(other / own for other, own in zip(*times, strict=True))


def lstm_time_ratios(found: dict[str, Any]) -> dict[str, Any]:
    """Returns, for each other cell of this project, our LSTM's time divided by that cell's time."""
    lstm = found.get('lstm', {}).get('ours')
    own = {cell: sides['ours']['forward_backward'] for cell, sides in found.items() if cell != 'lstm'}
    return {'than_lstm': {cell: lstm['forward_backward'] / seconds for cell, seconds in own.items()} if lstm else {}}


def print_cell(cell: str, side: str, row: dict[str, Any], ratios: list[float]) -> None:
    """Prints the line of the table with one library's measurements of one cell."""
    low, high = (1e3 * value for value in row['forward_backward_range'])
    whole = f'{1e3 * row["forward_backward"]:.1f} ({low:.1f} to {high:.1f})'
    said = ''.join(f'{value:>16.2f}' for value in ratios)
    print(f'{cell:>6} {side:>6} {1e3 * row["forward"]:>11.1f} {whole:>26} {said}', flush=True)


def measure_time_by_length(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Measures the time of forward + backward of cells and attention at several sequence lengths; yields all times
    measured so far.
    """
    shape = {'program': 'call', 'side': 'layer', 'width': ONE['width'], 'rows': options.rows, 'steps': options.steps}
    yield from measure_against_length('forward_backward', LAYERS, shape, options, lambda one: run(CHILD, one))


def measure_next_token_by_length(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Measures how long decoders take for the next token after texts of several lengths; yields all times measured so
    far.
    """
    shape = {'program': 'token', 'width': ONE['width'], 'steps': options.steps}
    yield from measure_against_length('token', DECODERS, shape, options, lambda one: run(CHILD, one))


def measure_against_length(
    what: str,
    sides: dict[str, dict[str, Any]],
    shape: dict[str, Any],
    options: flags.FlagValues,
    run: Callable[[dict[str, Any]], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yields all times of cells and attention measured so far, with growth and crossover lengths, once after each
    length.

    A crossover is the length from which a cell is cheaper than attention.
    """
    figures: Figures = {side: {} for side in sides}
    print(f'{WORDS[what]}, ms:\n{"length":>7} ' + ' '.join(f'{side:>9}' for side in sides))
    for length in sorted(options.lengths):
        for side, fields in sides.items():
            known = {past: {'forward_backward': row['seconds']} for past, row in figures[side].items()}
            if what != 'token' and extrapolated_seconds(known, length) > options.max_seconds:
                continue
            figures[side][length] = {'seconds': statistics.median(run(shape | fields | {'length': length})[what])}
        cells = (f'{1e3 * by[length]["seconds"]:>9.2f}' if length in by else f'{"":>9}' for by in figures.values())
        print(f'{length:>7} ' + ' '.join(cells), flush=True)
        yield {
            'shape': shape,
            'sides': figures,
            'exponents': scaling_exponents(figures),
            'crossovers': crossovers(figures),
        }
    for side, power in scaling_exponents(figures).items():
        print(f'{side}: {WORDS[what]} grows as length^{power:.2f} (from {min(figures[side])} to {max(figures[side])})')
    for side, others in crossovers(figures).items():
        for other, length in others.items():
            where = f'cheaper than {other} attention from length {length}' if length else f'never cheaper than {other}'
            print(f'{side}: {where}')


def scaling_exponents(figures: Figures) -> dict[str, float]:
    """Returns how the time of each cell or attention grows with length: the slope of a line in log-log coordinates."""
    return {
        side: log_log_slope(list(by), [row['seconds'] for row in by.values()])
        for side, by in figures.items()
        if len(by) > 1
    }


def crossovers(figures: Figures) -> dict[str, dict[str, int | None]]:
    """Returns, per cell or attention, from which length it is always faster than full or windowed attention.

    The value is None if there is no such length.
    """
    found: dict[str, dict[str, int | None]] = {side: {} for side in figures}
    for side, other in itertools.product(figures, ('full', 'window')):
        by, others = figures[side], figures[other]
        lengths = sorted(set(by) & set(others)) if side != other else []
        slower = [one for one in lengths if by[one]['seconds'] >= others[one]['seconds']]
        faster_from = [one for one in lengths if one > max(slower, default=0)]
        if lengths:
            found[side][other] = faster_from[0] if faster_from else None
    return {side: others for side, others in found.items() if others}


def measure_memory(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Measures the temporary bytes of an LSTM's forward + backward by length, with and without chunks of recomputation.

    Yields the measurements so far after each length.
    """
    found: dict[int, dict[str, int]] = {}
    print(f'{"length":>7} {"whole MiB":>10} {"in chunks":>10} {"ratio":>6}')
    for length in sorted(one for one in options.lengths if one > CHUNK):
        shape = ONE | {'program': 'memory', 'cell': 'lstm', 'length': length}
        found[length] = {
            name: run(CHILD, shape | {'chunk': chunk})['temporary_bytes']
            for name, chunk in (('whole', 0), ('chunks', CHUNK))
        }
        row = {name: value / 2**20 for name, value in found[length].items()}
        print(f'{length:>7} {row["whole"]:>10.1f} {row["chunks"]:>10.1f} {row["chunks"] / row["whole"]:>6.2f}')
        yield {'shape': ONE | {'chunk': CHUNK}, 'temporary_bytes': found}
    if len(found) > 1:
        print(
            f'whole: grows as length^{log_log_slope(list(found), [float(row["whole"]) for row in found.values()]):.2f}'
        )


def plot_figure(parts: dict[str, Figures], path: Path) -> None:
    """Plots milliseconds against length on logarithmic axes, a panel per part; attention has dashed lines.

    A label has the growth exponent and the lengths from which a cell is cheaper than full and windowed attention. Rings
    mark these lengths; the ring for full attention is larger.
    """
    import matplotlib

    matplotlib.use('agg')
    from matplotlib import pyplot

    titles = {'lengths': 'a layer, forward + backward', 'token': 'one more token of a decoder'}
    figure, panels = pyplot.subplots(
        1, len(parts), figsize=(6.2 * len(parts), 4.6), layout='constrained', squeeze=False
    )
    for axis, (part, figures) in zip(panels[0], parts.items(), strict=True):
        powers, cheaper = scaling_exponents(figures), crossovers(figures)
        for number, (side, by_length) in enumerate(figures.items()):
            values = [1e3 * row['seconds'] for row in by_length.values()]
            style, label = '-' if side in CELLS else '--', side
            label += f', length^{powers[side]:.2f}' if side in powers else ''
            for other, length in cheaper.get(side, {}).items():
                label += f', < {other} from {length}' if length else f', never < {other}'
                if length:
                    place, size = (length, 1e3 * by_length[length]['seconds']), 11 if other == 'full' else 7
                    axis.plot(*place, 'o', color=f'C{number}', markersize=size, fillstyle='none')
            axis.plot(list(by_length), values, style, color=f'C{number}', marker='o', markersize=3, label=label)
        axis.set(xscale='log', yscale='log', xlabel='length, positions', ylabel='ms', title=titles[part])
        axis.set_xscale('log', base=2)
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize=7)
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix('.'))
    pyplot.close(figure)


# ---- The functions below take one measurement, in a separate process. ----

Compute = Callable[[Any, 'Array'], 'Array']  # maps parameters and inputs [B, L, D] to outputs [B, L, U]
NNX_CELLS = {'tanh': 'SimpleCell', 'gru': 'GRUCell', 'lstm': 'OptimizedLSTMCell'}  # class names in Flax NNX


def make_project_cell(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """Returns a recurrent cell of this project, as a function over sequences without padding, and its parameters."""
    from flax import nnx

    from efficient_attention.modules.recurrent_sub_layer import CellParameters
    from efficient_attention.recurrence.run_cell import run_cell

    graph, parameters = nnx.split(CellParameters(layer_config(shape), rngs=nnx.Rngs(0)))
    chunk = shape.get('chunk', 0)
    return lambda parameters, x: run_cell(nnx.merge(graph, parameters).learned(), x, chunk=chunk)[0], parameters


def make_flax_nnx_cell(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """Returns a recurrent cell of Flax NNX under `nnx.RNN`, as a function over sequences, and its parameters."""
    from flax import nnx

    cell = getattr(nnx, NNX_CELLS[shape['cell']])(shape['width'], shape['width'], rngs=nnx.Rngs(0))
    start = cell.initialize_carry((shape['rows'], shape['width']), nnx.Rngs(0))
    graph, parameters, other = nnx.split(nnx.RNN(cell, rngs=False), nnx.Param, ...)
    return lambda parameters, x: nnx.merge(graph, parameters, other)(x, initial_carry=start), parameters


def make_sequence_mixing_layer(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """Returns the sub-layer of this project that mixes positions, and its parameters.

    The sub-layer is a recurrent cell, or attention with its projections.
    """
    import jax.numpy as jnp
    from flax import nnx

    from efficient_attention.modules.attention import Attention
    from efficient_attention.modules.layer_context import Context
    from efficient_attention.modules.recurrent_sub_layer import RecurrentSubLayer

    config, segments = layer_config(shape), jnp.ones((shape['rows'], shape['length']), jnp.int32)
    kind = RecurrentSubLayer if config.cell != 'none' else Attention
    graph, parameters, other = nnx.split(kind(config, rngs=nnx.Rngs(0)), nnx.Param, ...)
    positions = jnp.broadcast_to(jnp.arange(shape['length']), segments.shape)

    def compute(parameters: Any, x: Array) -> Array:
        module = nnx.merge(graph, parameters, other)
        if isinstance(module, RecurrentSubLayer):
            return module(x, segments)
        return module.run(x, Context(segments, positions), config.mechanisms[0])[0]

    return compute, parameters


def layer_config(shape: dict[str, Any]) -> LayerConfig:
    """Returns the config of a layer with the recurrent cell or attention that `shape` names."""
    from efficient_attention.config.model import ModelConfig

    fields = {'width': shape['width'], 'heads': shape['width'] // 64 or 1, 'attention_dropout_rate': 0.0}
    return ModelConfig(cell=shape.get('cell', 'none'), attention=shape.get('attention', 'full'), **fields)


SIDES = {'ours': make_project_cell, 'nnx': make_flax_nnx_cell, 'layer': make_sequence_mixing_layer}


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Takes the measurement that `shape['program']` names: time of calls, memory of a program, or time per token."""
    return PROGRAMS[shape['program']](shape)


def measure_call(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures seconds of each forward and each forward + backward call, and peak resident memory above the inputs."""
    import jax

    compute, parameters = SIDES[shape['side']](shape)
    x, cotangent = random_inputs(shape)
    baseline = peak_bytes()
    programs = {'forward': jax.jit(compute), 'forward_backward': compile_gradient(compute, cotangent)}
    result: dict[str, Any] = {'name': f'{shape["side"]}, jax {jax.__version__}'}
    for name, program in programs.items():
        result[name] = time_calls(lambda program=program: jax.block_until_ready(program(parameters, x)), shape['steps'])
    return result | {'peak_bytes': peak_bytes() - baseline}


def measure_program_memory(shape: dict[str, Any]) -> dict[str, Any]:
    """Returns the compiler's temporary bytes of a cell's forward + backward; the program does not run."""
    compute, parameters = make_project_cell(shape)
    x, cotangent = random_inputs(shape)
    compiled = compile_gradient(compute, cotangent).lower(parameters, x).compile()
    return {'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes}


def measure_next_token(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures the seconds in which a one-layer decoder with a cache predicts the next token of a text."""
    fields = {'layers': 1, 'width': shape['width'], 'heads': shape['width'] // 64 or 1, 'vocab_size': 256}
    fields |= {'norm': 'pre', 'positions': 'none', 'dropout_rate': 0.0, 'attention_dropout_rate': 0.0}
    fields |= {'cell': shape['cell'], 'attention': 'causal'} if 'cell' in shape else {'attention': shape['attention']}
    found = measure_token({'model': fields, 'context': shape['length'], 'way': 'cached', 'calls': shape['steps']})
    return {'token': [1.0 / rate for rate in found['rates']], 'state_bytes': found['state_bytes']}


PROGRAMS = {'call': measure_call, 'memory': measure_program_memory, 'token': measure_next_token}


def random_inputs(shape: dict[str, Any]) -> tuple[Array, Array]:
    """Returns random inputs and a random gradient of the outputs, each [B, L, D]."""
    import jax

    size = (shape['rows'], shape['length'], shape['width'])
    return jax.block_until_ready(tuple(jax.random.normal(key, size) for key in jax.random.split(jax.random.key(0))))


def compile_gradient(compute: Compute, cotangent: Array) -> Any:
    """Returns the jitted function that computes the gradients of a cell's parameters and inputs."""
    import jax

    return jax.jit(jax.grad(lambda parameters, x: (compute(parameters, x) * cotangent).sum(), argnums=(0, 1)))


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
