"""`scripts/benchmark.py recurrent`: time and memory of recurrent cells against other libraries and attention.

`cells`: time of forward and forward + backward of each cell, against Flax's cell under `nnx.RNN`, PyTorch's cell and
our LSTM. Batch 32, width 256, length 128. `lengths`: time of forward + backward against length, at width 256, for a
cell and for full and windowed attention with its projections. `token`: time of one more token in a decoder with one
such layer, from a state or a cache, against the length of the text before it. `memory`: temporary bytes of an LSTM's
forward + backward against length, with and without recomputation in chunks.

Each measurement is a separate process, and sides take turns. A side is skipped at a length if its time extrapolated
from the two lengths before is above the limit. `--plot` plots the parts `lengths` and `token` in one figure.
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

if TYPE_CHECKING:  # only the child process needs them
    from jax import Array

    from efficient_attention.config.layer import LayerConfig

CELLS = ('tanh', 'gru', 'lstm', 'sru1', 'sru2')
OF_PEERS = ('tanh', 'gru', 'lstm')  # cells that nnx and PyTorch also have
ONE = {'rows': 32, 'length': 128, 'width': 256}
WINDOW = 64  # positions to each side; only back in a decoder
CHUNK = 32  # positions
LONG = 8192  # positions up to which lengths double
# Side -> config fields, for a layer and for a decoder.
LAYERS: dict[str, dict[str, Any]] = {cell: {'cell': cell} for cell in CELLS}
LAYERS |= {'full': {'attention': 'full'}, 'window': {'attention': f'window({WINDOW})'}}
DECODERS = LAYERS | {'full': {'attention': 'causal'}, 'window': {'attention': f'causal & window({WINDOW})'}}
PARTS = ('cells', 'lengths', 'token', 'memory')
WORDS = {'forward_backward': 'a layer forward + backward', 'token': 'a token of a decoder'}

PEER = str(Path(__file__).with_name('peers') / 'recurrent.py')
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command that measures one shape in a separate process
Figures = dict[str, dict[int, dict[str, Any]]]  # side, length, figures


def define_flags(options: flags.FlagValues) -> None:
    """Defines the flags of the command."""
    define_choices('parts', PARTS, 'Parts to measure', options)
    define_integers('lengths', [2**power for power in range(6, 14)], 'Positions', options)
    flags.DEFINE_integer('rows', 4, 'Rows, in the part lengths.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side, in the part cells.', flag_values=options)
    flags.DEFINE_integer('steps', 5, 'Timed calls per process.', flag_values=options)
    longest = 'Skip lengths whose call is expected to take longer, in the part lengths.'
    flags.DEFINE_float('max_seconds', 20.0, longest, flag_values=options)
    define_path('plot', 'File for a log-log plot of lengths and token, .png or .svg.', options=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError on invalid numbers, and on a plot without anything to plot."""
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
    """Yields the figures so far after each row of each part; plots them at the end if asked.

    Args:
        options: the command-line flags.
        run: runs a program on a shape and returns its figures.
    """
    report: dict[str, Any] = {}
    parts = {'cells': measure_cells, 'lengths': measure_lengths, 'token': measure_tokens, 'memory': measure_memory}
    for part in options.parts:
        for figures in parts[part](options, run):
            report[part] = figures
            yield report
    if options.plot:
        draw({part: report[part]['sides'] for part in ('lengths', 'token') if part in report}, options.plot)


def measure_cells(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the figures of all cells so far after each cell, for each library; prints the ratios."""
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
    """Returns medians over processes of their median calls, and of their peak memory."""
    row: dict[str, Any] = {'name': runs[0]['name']}
    for name in ('forward', 'forward_backward'):
        medians = [statistics.median(one[name]) for one in runs]
        row |= {name: statistics.median(medians), f'{name}_range': [min(medians), max(medians)]}
    return row | {'peak_bytes': statistics.median(one['peak_bytes'] for one in runs)}


def speed_ratio(others: list[dict[str, Any]], ours: list[dict[str, Any]]) -> float:
    """Returns the other library's forward + backward time over ours: the median over rounds."""
    times = [[statistics.median(one['forward_backward']) for one in runs] for runs in (others, ours)]
    return statistics.median(other / own for other, own in zip(*times, strict=True))


def lstm_time_ratios(found: dict[str, Any]) -> dict[str, Any]:
    """Returns our LSTM's time over the time of our other cells."""
    lstm = found.get('lstm', {}).get('ours')
    own = {cell: sides['ours']['forward_backward'] for cell, sides in found.items() if cell != 'lstm'}
    return {'than_lstm': {cell: lstm['forward_backward'] / seconds for cell, seconds in own.items()} if lstm else {}}


def print_cell(cell: str, side: str, row: dict[str, Any], ratios: list[float]) -> None:
    """Prints a line of the table of cells."""
    low, high = (1e3 * value for value in row['forward_backward_range'])
    whole = f'{1e3 * row["forward_backward"]:.1f} ({low:.1f} to {high:.1f})'
    said = ''.join(f'{value:>16.2f}' for value in ratios)
    print(f'{cell:>6} {side:>6} {1e3 * row["forward"]:>11.1f} {whole:>26} {said}', flush=True)


def measure_lengths(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the forward + backward times of all sides so far after each length."""
    shape = {'program': 'call', 'side': 'layer', 'width': ONE['width'], 'rows': options.rows, 'steps': options.steps}
    yield from measure_against_length('forward_backward', LAYERS, shape, options, lambda one: run(CHILD, one))


def measure_tokens(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the times of one more token of all sides so far after each length of the text before it."""
    shape = {'program': 'token', 'width': ONE['width'], 'steps': options.steps}
    yield from measure_against_length('token', DECODERS, shape, options, lambda one: run(CHILD, one))


def measure_against_length(
    what: str,
    sides: dict[str, dict[str, Any]],
    shape: dict[str, Any],
    options: flags.FlagValues,
    run: Callable[[dict[str, Any]], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yields seconds of all sides so far after each length, their growth, and where cells become cheaper."""
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
    """Returns least-squares slopes of log time over log length."""
    return {
        side: log_log_slope(list(by), [row['seconds'] for row in by.values()])
        for side, by in figures.items()
        if len(by) > 1
    }


def crossovers(figures: Figures) -> dict[str, dict[str, int | None]]:
    """Returns per side the shortest length from which it is always faster than each attention; None if it never is."""
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
    """Yields the temporary bytes of an LSTM's forward + backward so far after each length, with and without chunks."""
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


def draw(parts: dict[str, Figures], path: Path) -> None:
    """Plots milliseconds against length, a panel per part, with logarithmic axes; attention has dashed lines.

    A label has the growth exponent and the lengths from which a side is cheaper than full and windowed attention. Rings
    mark these lengths, the larger one for full attention.
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


# ---- one measurement, in a separate process ----

Compute = Callable[[Any, 'Array'], 'Array']  # from parameters and inputs [B, L, D] to outputs [B, L, U]
NNX_CELLS = {'tanh': 'SimpleCell', 'gru': 'GRUCell', 'lstm': 'OptimizedLSTMCell'}  # class names in nnx


def project_cell(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """Returns a cell of this project over rows without padding, and its parameters."""
    from flax import nnx

    from efficient_attention.modules.recurrent import CellParameters
    from efficient_attention.recurrence.recur import recur

    graph, parameters = nnx.split(CellParameters(layer_config(shape), rngs=nnx.Rngs(0)))
    chunk = shape.get('chunk', 0)
    return lambda parameters, x: recur(nnx.merge(graph, parameters).learned(), x, chunk=chunk)[0], parameters


def flax_nnx_cell(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """Returns the same cell of Flax under `nnx.RNN`, and its parameters."""
    from flax import nnx

    cell = getattr(nnx, NNX_CELLS[shape['cell']])(shape['width'], shape['width'], rngs=nnx.Rngs(0))
    start = cell.initialize_carry((shape['rows'], shape['width']), nnx.Rngs(0))
    graph, parameters, other = nnx.split(nnx.RNN(cell, rngs=False), nnx.Param, ...)
    return lambda parameters, x: nnx.merge(graph, parameters, other)(x, initial_carry=start), parameters


def mixing_layer(shape: dict[str, Any]) -> tuple[Compute, Any]:
    """Returns the part of our layer that mixes positions (a cell, or attention with projections) and parameters."""
    import jax.numpy as jnp
    from flax import nnx

    from efficient_attention.modules.attention import Attention
    from efficient_attention.modules.context import Context
    from efficient_attention.modules.recurrent import Recurrent

    config, segments = layer_config(shape), jnp.ones((shape['rows'], shape['length']), jnp.int32)
    kind = Recurrent if config.cell != 'none' else Attention
    graph, parameters, other = nnx.split(kind(config, rngs=nnx.Rngs(0)), nnx.Param, ...)
    positions = jnp.broadcast_to(jnp.arange(shape['length']), segments.shape)

    def compute(parameters: Any, x: Array) -> Array:
        module = nnx.merge(graph, parameters, other)
        if isinstance(module, Recurrent):
            return module(x, segments)
        return module.run(x, Context(segments, positions), config.mechanisms[0])[0]

    return compute, parameters


def layer_config(shape: dict[str, Any]) -> LayerConfig:
    """Returns the config of the layer with the shape's cell or attention."""
    from efficient_attention.config.model import ModelConfig

    fields = {'width': shape['width'], 'heads': shape['width'] // 64 or 1, 'attention_dropout_rate': 0.0}
    return ModelConfig(cell=shape.get('cell', 'none'), attention=shape.get('attention', 'full'), **fields)


SIDES = {'ours': project_cell, 'nnx': flax_nnx_cell, 'layer': mixing_layer}


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of the program that `shape['program']` names."""
    return PROGRAMS[shape['program']](shape)


def measure_call(shape: dict[str, Any]) -> dict[str, Any]:
    """Returns seconds of each forward and forward + backward call, and peak resident memory above the inputs."""
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
    """Returns the temporary bytes of the compiled forward + backward; nothing runs."""
    compute, parameters = project_cell(shape)
    x, cotangent = random_inputs(shape)
    compiled = compile_gradient(compute, cotangent).lower(parameters, x).compile()
    return {'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes}


def measure_next_token(shape: dict[str, Any]) -> dict[str, Any]:
    """Returns the seconds of the next token of a decoder of one layer after `length` tokens, from its cache."""
    fields = {'layers': 1, 'width': shape['width'], 'heads': shape['width'] // 64 or 1, 'vocab_size': 256}
    fields |= {'norm': 'pre', 'positions': 'none', 'dropout_rate': 0.0, 'attention_dropout_rate': 0.0}
    fields |= {'cell': shape['cell'], 'attention': 'causal'} if 'cell' in shape else {'attention': shape['attention']}
    found = measure_token({'model': fields, 'context': shape['length'], 'way': 'cached', 'calls': shape['steps']})
    return {'token': [1.0 / rate for rate in found['rates']], 'state_bytes': found['state_bytes']}


PROGRAMS = {'call': measure_call, 'memory': measure_program_memory, 'token': measure_next_token}


def random_inputs(shape: dict[str, Any]) -> tuple[Array, Array]:
    """Returns inputs and the gradient of the outputs, [B, L, D] each."""
    import jax

    size = (shape['rows'], shape['length'], shape['width'])
    return jax.block_until_ready(tuple(jax.random.normal(key, size) for key in jax.random.split(jax.random.key(0))))


def compile_gradient(compute: Compute, cotangent: Array) -> Any:
    """Returns the compiled function that computes the gradients of parameters and inputs."""
    import jax

    return jax.jit(jax.grad(lambda parameters, x: (compute(parameters, x) * cotangent).sum(), argnums=(0, 1)))


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
