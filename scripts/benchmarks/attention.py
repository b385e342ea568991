"""Measures time and memory of attention mechanisms and other libraries by length (`scripts/benchmark.py attention`).

A side is one of our mechanisms, or a peer: attention of another library. Each side and length runs in a separate
process. A side is skipped at a length if its time, extrapolated from the two lengths before, is above the limit. Each
side is compared with full attention at the same length in the same run. Measurements are yielded after every length,
so an interrupted run loses at most one length. With 0 steps nothing runs, and only the temporary memory of the compiled
forward + backward is measured.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from efficient_attention.atomic_files import atomic_file
from efficient_attention.commands.flags import define_choices, define_integers, define_path
from efficient_attention.errors import InputError
from scripts.benchmarks.process_measurements import peak_bytes, time_calls

if TYPE_CHECKING:  # at run time, only the child process imports these modules
    import jax

SHAPE = {'heads': 8, 'head_width': 64}
PEER = str(Path(__file__).with_name('peers') / 'attention.py')
YARDSTICK = 'full'


@dataclasses.dataclass(frozen=True)
class ComparedImplementation:
    """One implementation of attention to measure: one of our mechanisms on a backend, or another library's attention.

    `against` names the sides with which this side is compared.
    """

    name: str
    mechanism: str = ''  # text form of the mechanism; {length} becomes the number of keys, {root} its square root
    backend: str = 'blocked'
    peer: str = ''
    against: tuple[str, ...] = ()


OURS = (
    ComparedImplementation('full', 'full', against=('sdpa', 'jax_nn')),
    ComparedImplementation('causal', 'causal', against=('sdpa_causal',)),
    ComparedImplementation('jax_nn', 'full', 'jax_nn'),
    ComparedImplementation('window', 'window(64)', against=('hf_longformer', 'local_attention', 'sdpa')),
    ComparedImplementation('bigbird', 'bigbird(64, 3)', against=('hf_bigbird',)),
    ComparedImplementation('sparse_fixed', 'sparse_fixed(128, 8)'),
    ComparedImplementation('sparse_strided', 'sparse_strided(128)'),
    ComparedImplementation('lsh', 'lsh(64, 4)', against=('hf_reformer', 'reformer_pytorch')),
    ComparedImplementation('favor', 'favor(256)', against=('performer_pytorch',)),
    ComparedImplementation('favor_causal', 'favor(256, causal=True)', against=('performer_pytorch_causal',)),
    ComparedImplementation('linear', 'linear'),
    ComparedImplementation('linear_causal', 'linear(causal=True)'),
    ComparedImplementation('cos', "linear('cos', {length})"),
    ComparedImplementation('sparsemax', 'sparsemax'),
    ComparedImplementation('entmax', 'entmax'),
    ComparedImplementation('hard', 'hard'),
    ComparedImplementation('linformer', 'linformer(256, {length})', against=('linformer_package_tied',)),
    ComparedImplementation('linformer_untied', 'linformer(256, {length}, tied=False)', against=('linformer_package',)),
    ComparedImplementation('synthesizer', "synthesizer('dense', {length})"),
    ComparedImplementation('synthesizer_random', "synthesizer('random', {length})", backend='auto'),
    ComparedImplementation('synthesizer_factorized', "synthesizer('factorized', {length}, 8)"),
    ComparedImplementation('synthesizer_dot', "synthesizer('random+dot', {length})", backend='auto'),
    ComparedImplementation('nystrom', 'nystrom(64)', against=('nystrom_attention',)),
    ComparedImplementation('nystrom_convolution', 'nystrom(64, 6, 33)', against=('nystrom_attention_convolution',)),
    ComparedImplementation('induced', 'induced(64)'),
    ComparedImplementation('sinkhorn', 'sinkhorn(64, 1024)', against=('sinkhorn_transformer',)),
    ComparedImplementation(
        'sinkhorn_causal', 'sinkhorn(64, 1024, causal=True)', against=('sinkhorn_transformer_causal',)
    ),
    ComparedImplementation('sortcut', 'sinkhorn(64, 1024, cut=2)', against=('sinkhorn_transformer_cut',)),
    ComparedImplementation('routing', 'routing(64, 64)', against=('routing_transformer',)),
    ComparedImplementation('routing_causal', 'routing(64, 64, causal=True)', against=('routing_transformer_causal',)),
    ComparedImplementation('routing_root', 'routing({root}, {root})'),
    ComparedImplementation('routing_half', 'routing(64, 64, local_heads=4)', against=('routing_transformer_half',)),
)
PEERS = tuple(ComparedImplementation(name, peer=name) for side in OURS for name in side.against if name != 'jax_nn')
SIDES = {side.name: side for side in OURS + tuple(dict.fromkeys(PEERS))}
# Each measurement in the report has these fields.
ROW = (
    'name',
    'forward',
    'forward_range',
    'forward_backward',
    'forward_backward_range',
    'peak_bytes',
    'temporary_bytes',
)

Figures = dict[str, dict[int, dict[str, Any]]]  # {implementation: {length: measurement with the fields of ROW}}
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]  # starts a child process and returns its measurements
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_integers('lengths', [2**power for power in range(9, 17)], 'Positions', options)
    define_choices('sides', list(SIDES), 'Mechanisms and peers to measure', options)
    flags.DEFINE_integer('rounds', 1, 'Processes per side and length.', flag_values=options)
    flags.DEFINE_integer('steps', 10, 'Timed steps per process; 0 = only compile.', flag_values=options)
    longest = 'Skip lengths whose forward + backward is expected to take longer.'
    flags.DEFINE_float('max_seconds', 20.0, longest, flag_values=options)
    define_path('plot', 'File for a log-log plot, .png or .svg.', options=options)
    define_path('from_json', "Measure nothing: show the figures of a run's --output.", options=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if flags are invalid, so that the error does not appear only after hours of measuring."""
    if min(options.lengths) < 1:
        raise InputError(f'length {min(options.lengths)}: it must be at least 1')
    for name, least in (('steps', 0), ('rounds', 1), ('max_seconds', 0.0)):
        if options[name].value < least:
            raise InputError(f'--{name} {options[name].value}: it must be at least {least}')
    if not options.steps and (options.plot or any(SIDES[name].peer for name in options.sides)):
        raise InputError('--steps 0 only compiles: give --sides without peers, and no --plot')
    if options.plot and options.plot.suffix not in ('.png', '.svg'):
        raise InputError(f'--plot {options.plot}: it must end in .png or .svg')
    for name in options if options.from_json else ():
        if name not in ('from_json', 'plot') and options[name].value != options[name].default:
            raise InputError(f'--{name} has no effect with --from_json')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each sequence length; prints and plots the report at the
    end.
    """
    if not options.steps:
        yield from measure_compiled_memory(options, run)
        return
    peer = [str(options.peers_python), PEER]
    figures: Figures = {name: {} for name in options.sides}
    print_table_header()
    for length in sorted(options.lengths):
        runs: dict[str, list[dict]] = {}
        for number in range(options.rounds):
            for name in options.sides if number % 2 == 0 else options.sides[::-1]:
                if extrapolated_seconds(figures[name], length) > options.max_seconds:
                    continue
                shape = SHAPE | {'length': length, 'steps': options.steps} | dataclasses.asdict(SIDES[name])
                runs.setdefault(name, []).append(run(peer if SIDES[name].peer else CHILD, shape))
        for name, children in runs.items():
            figures[name][length] = summary(children)
            print_row(length, name, figures[name][length])
        yield make_report(figures)
    print_and_plot_report(figures, options.plot)


def measure_compiled_memory(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields all values so far of the compiler's temporary bytes for forward + backward, once after each sequence
    length. Runs no program.

    Prints the growth of memory with length at the end.
    """
    temporary: dict[str, dict[int, int]] = {name: {} for name in options.sides}
    print(f'{"length":>7} {"side":<26} {"temp MB":>8}')
    for length in sorted(options.lengths):
        for name, by_length in temporary.items():
            shape = SHAPE | {'length': length, 'steps': 0} | dataclasses.asdict(SIDES[name])
            by_length[length] = run(CHILD, shape)['forward_backward_temporary_bytes']
            print(f'{length:>7} {name:<26} {by_length[length] / 2**20:>8.0f}', flush=True)
        yield {'shape': SHAPE, 'temporary_bytes': temporary}
    for name, by_length in temporary.items() if len(options.lengths) > 1 else ():
        print(
            f'{name}: temporary memory grows as length^{log_log_slope(list(by_length), list(by_length.values())):.2f}'
        )


def make_report(figures: Figures) -> dict[str, Any]:
    """Returns the report of all measurements, with comparisons, scaling exponents and crossover lengths."""
    return {
        'shape': SHAPE,
        'sides': {name: dict(by_length) for name, by_length in figures.items()},
        'comparisons': compare(figures),
        'exponents': scaling_exponents(figures),
        'crossovers': crossovers(figures),
    }


def show_saved_report(figures: Figures, plot: Path | None) -> None:
    """Prints and plots the measurements of an earlier run, read from its JSON file."""
    print_table_header()
    for length in sorted({length for by_length in figures.values() for length in by_length}):
        for name in figures:
            if length in figures[name]:
                print_row(length, name, figures[name][length])
    print_and_plot_report(figures, plot)


def print_and_plot_report(figures: Figures, plot: Path | None) -> None:
    """Prints comparisons, scaling exponents and crossover lengths, and plots the measurements if a path is given."""
    print_report(make_report(figures))
    if plot:
        plot_figure(figures, plot)


def extrapolated_seconds(by_length: dict[int, dict[str, Any]], length: int) -> float:
    """Returns the expected seconds of a call at a new length, extrapolated from the two longest measured lengths.

    Returns 0 if fewer than two lengths are measured.
    """
    if len(by_length) < 2:
        return 0.0
    (short, first), (long, second) = sorted(by_length.items())[-2:]
    slope = math.log(second['forward_backward'] / first['forward_backward']) / math.log(long / short)
    return second['forward_backward'] * (length / long) ** max(slope, 0.5)


def summary(children: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines measurements of one implementation by several processes: median and range of the median call times."""
    row: dict[str, Any] = {'name': children[0]['name']}
    for name in ('forward', 'forward_backward'):
        medians = [statistics.median(child[name]) for child in children]
        row |= {name: statistics.median(medians), f'{name}_range': [min(medians), max(medians)]}
    row['peak_bytes'] = statistics.median(child['peak_bytes'] for child in children)
    row['temporary_bytes'] = children[0].get('forward_backward_temporary_bytes')
    return row


def print_table_header() -> None:
    """Prints the column titles of the table of measurements."""
    titles = f'{"forward ms":>11} {"fwd+bwd ms":>11} {"(range)":>17} {"peak MB":>8} {"temp MB":>8}'
    print(f'{"length":>7} {"side":<26} {titles}')


def print_row(length: int, name: str, row: dict[str, Any]) -> None:
    """Prints the line of the table with the measurements of one implementation at one length."""
    low, high = (1e3 * value for value in row['forward_backward_range'])
    temporary = '' if row['temporary_bytes'] is None else f'{row["temporary_bytes"] / 2**20:.0f}'
    print(
        f'{length:>7} {name:<26} {1e3 * row["forward"]:>11.1f} {1e3 * row["forward_backward"]:>11.1f} '
        f'{f"{low:.0f} to {high:.0f}":>17} {row["peak_bytes"] / 2**20:>8.0f} {temporary:>8}',
        flush=True,
    )


def compare(figures: Figures) -> list[dict[str, Any]]:
    """Returns, per length, the time and peak memory of our mechanisms, divided by other implementations' values."""
    rows = []
    for side in OURS:
        for other in side.against:
            for length in sorted(set(figures.get(side.name, {})) & set(figures.get(other, {}))):
                own, its = figures[side.name][length], figures[other][length]
                ratios = {name: own[name] / its[name] for name in ('forward', 'forward_backward')}
                ratios['peak_bytes'] = own['peak_bytes'] / max(1, its['peak_bytes'])
                rows.append({'ours': side.name, 'other': other, 'length': length} | ratios)
    return rows


def scaling_exponents(figures: Figures, start: int = 4096, stop: int = 32768) -> dict[str, dict[str, float]]:
    """Returns how each implementation's time and peak memory grow with length: the slope in log-log coordinates."""
    slopes = {}
    for name, by_length in figures.items():
        lengths = [length for length in sorted(by_length) if start <= length <= stop]
        if len(lengths) >= 2:
            slopes[name] = {
                what: log_log_slope(lengths, [by_length[length][what] for length in lengths])
                for what in ('forward_backward', 'peak_bytes')
            } | {'from': lengths[0], 'to': lengths[-1]}
    return slopes


def log_log_slope(lengths: list[int], values: list[float]) -> float:
    """Returns the slope of the least-squares line through the points (log length, log value)."""
    return statistics.linear_regression([math.log(x) for x in lengths], [math.log(max(y, 1e-9)) for y in values]).slope


def crossovers(figures: Figures) -> dict[str, int | None]:
    """Returns, per mechanism, the length from which its forward + backward is always faster than full attention."""
    full = figures.get(YARDSTICK, {})
    result = {}
    for side in OURS:
        lengths = sorted(set(figures.get(side.name, {})) & set(full))
        if side.name in (YARDSTICK, 'jax_nn') or not lengths:
            continue
        slower = [x for x in lengths if figures[side.name][x]['forward_backward'] >= full[x]['forward_backward']]
        faster = [length for length in lengths if length > max(slower, default=0)]
        result[side.name] = faster[0] if faster else None
    return result


def print_report(report: dict[str, Any]) -> None:
    """Prints time and memory ratios, scaling exponents and crossover lengths of a report."""
    for row in report['comparisons']:
        times = f'{row["forward_backward"]:.2f} x the time forward + backward, {row["forward"]:.2f} x forward'
        memory = f'{row["peak_bytes"]:.2f} x the peak memory'
        print(f'{row["length"]:>7} {row["ours"]} / {row["other"]}: {times}, {memory}')
    for name, row in report['exponents'].items():
        print(
            f'{name}: time grows as length^{row["forward_backward"]:.2f}, peak memory as '
            f'length^{row["peak_bytes"]:.2f} ({row["from"]} to {row["to"]})'
        )
    for name, length in report['crossovers'].items():
        print(f'{name}: faster than full attention from length {length}' if length else f'{name}: never faster here')


def plot_figure(figures: Figures, path: Path) -> None:
    """Plots time and peak memory against length on logarithmic axes; other libraries have dashed lines."""
    import matplotlib

    matplotlib.use('agg')
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5.5), layout='constrained')
    colors = pyplot.get_cmap('tab20').colors
    for number, (name, by_length) in enumerate(figures.items()):
        lengths = sorted(by_length)
        style = '--' if name in {side.name for side in PEERS} else '-'
        for axis, what, scale in ((axes[0], 'forward_backward', 1e3), (axes[1], 'peak_bytes', 2**-20)):
            values = [by_length[length][what] * scale for length in lengths]
            axis.plot(lengths, values, style, color=colors[number % 20], marker='o', markersize=3, label=name)
    for axis, title in zip(axes, ('forward + backward, ms', 'peak memory above the inputs, MiB'), strict=True):
        axis.set(xscale='log', yscale='log', xlabel='length, positions', title=title)
        axis.set_xscale('log', base=2)
        axis.grid(visible=True, alpha=0.3)
    axes[1].legend(fontsize=8, ncols=2, loc='upper left', bbox_to_anchor=(1.0, 1.0))
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix('.') or 'png')
    pyplot.close(figure)


def load_saved_figures(path: Path) -> Figures:
    """Reads the measurements from the JSON file of an earlier run, even if that run was interrupted.

    Raises:
        InputError: the file cannot be read, or has other content.
    """
    try:
        sides = json.loads(path.read_text(encoding='utf-8'))['attention']['sides']
        return {
            name: {int(length): {field: row[field] for field in ROW} for length, row in by_length.items()}
            for name, by_length in sides.items()
        }
    except OSError as error:
        raise InputError(f'{path}: {error.strerror}') from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError(f'{path}: it holds no figures that `benchmark.py attention --output` wrote') from None


# ---- The functions below take one measurement, in a separate process. ----


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures one mechanism at one length: seconds per call after a warm-up, temporary memory, peak resident memory.

    If `shape['steps']` is 0, nothing runs, and only temporary memory is returned.
    """
    import jax

    from efficient_attention.attention.attend import attend
    from efficient_attention.attention.draw_operands import draw_operands
    from efficient_attention.attention.parsing import parse_mechanism

    size = (1, shape['length'], shape['heads'], shape['head_width'])
    q, k, v, cotangent = (jax.random.normal(key, size) for key in jax.random.split(jax.random.key(0), 4))
    jax.block_until_ready((q, k, v, cotangent))
    baseline = peak_bytes()
    length = shape['length']
    mechanism = parse_mechanism(shape['mechanism'].format(length=length, root=round(math.sqrt(length))))
    learned = draw_operands(mechanism, *size[2:], jax.random.key(2))
    rng = jax.random.key(1) if mechanism.randomness.always else None

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, learned: Any) -> jax.Array:
        k = q if mechanism.requirements.shared_qk else k
        return attend(q, k, v, mechanism, rng=rng, learned=learned, backend=shape['backend'])

    def forward_backward(q: jax.Array, k: jax.Array, v: jax.Array, learned: Any) -> Any:
        if mechanism.requirements.shared_qk:
            out, pull = jax.vjp(lambda q, v: forward(q, k, v, learned), q, v)
        else:
            out, pull = jax.vjp(forward, q, k, v, learned)
        return out, pull(cotangent)

    result: dict[str, Any] = {'name': f'efficient_attention, jax {jax.__version__}'}
    for name, function in (('forward', forward), ('forward_backward', forward_backward)):
        compiled = jax.jit(function).lower(q, k, v, learned).compile()
        result[f'{name}_temporary_bytes'] = compiled.memory_analysis().temp_size_in_bytes
        if shape['steps']:
            result[name] = time_calls(
                lambda compiled=compiled: jax.block_until_ready(compiled(q, k, v, learned)), shape['steps']
            )
    return result | ({'peak_bytes': peak_bytes() - baseline} if shape['steps'] else {})


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
