"""Plots the score of compressed models against time and size, from the measurements of `benchmark.py compress`.

    python scripts/benchmarks/plot_compression.py docs/results/data/compression.json a.png --quality whole=86.4,int8=86

`--quality` gives the scores of sides, from separate runs. A side with several scores, as in `3x384=84.5,3x384=85.4`, is
plotted at their mean, with an error bar from lowest to highest.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from absl import flags
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from efficient_attention.atomic_files import atomic_file
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError

MEBIBYTE = 2**20
NEAR = 1.3  # a point's name moves to its left side if the next point on the right is within this factor


def main() -> None:
    """Writes the plot, and prints one JSON object: scores, milliseconds and bytes of each model."""
    options = define_flags()
    figures, picture = parse_flags(sys.argv, ('quality',), options=options, words='FIGURES OUTPUT')
    output = Path(picture)
    if output.suffix not in ('.png', '.svg'):
        raise InputError(f'{output}: it must end in .png or .svg')
    qualities = parse_scores(options.quality)
    sides = read_scored_models(Path(figures), options.length, options.rows, qualities)
    with atomic_file(output) as partial:
        plot_figure(sides, f'{options.rows} x {options.length} tokens', options.metric).savefig(
            partial, format=output.suffix[1:], dpi=150
        )
    print(json.dumps(sides))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    flags.DEFINE_list('quality', None, 'SIDE=SCORE, or several separated by commas.', flag_values=options)
    flags.DEFINE_string('metric', 'accuracy, %', 'Name of the scores, shown at the axis.', flag_values=options)
    flags.DEFINE_integer('length', 128, 'Tokens per row of the measured calls.', flag_values=options)
    flags.DEFINE_integer('rows', 32, 'Rows of the measured calls.', flag_values=options)
    return options


def parse_scores(entries: list[str]) -> dict[str, list[float]]:
    """Parses entries such as '3x384=84.5'; returns all scores of each model, or raises InputError for a bad entry."""
    found: dict[str, list[float]] = {}
    for entry in entries:
        side, _, score = entry.partition('=')
        try:
            found.setdefault(side, []).append(float(score))
        except ValueError:
            raise InputError(f'--quality has {entry!r}; entries are as 3x384=84.5') from None
    return found


def read_scored_models(
    path: Path, length: int, rows: int, qualities: dict[str, list[float]]
) -> dict[str, dict[str, Any]]:
    """Reads the benchmark's measurements; returns scores, milliseconds per call and parameter bytes of each model."""
    try:
        shapes = read_json_file(path)['compress']['infer']
        measured = shapes[str(length)][str(rows)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f'no figures of {rows} rows of {length} tokens' if isinstance(error, KeyError) else f'{error}'
        raise InputError(f'{path}: {what}; `benchmark.py compress --parts infer --output` writes them') from None
    for side in qualities:
        if side not in measured:
            raise InputError(f'--quality has {side!r}; measured are {", ".join(measured)}')
    return {
        side: {
            'qualities': scores,
            'milliseconds': measured[side]['milliseconds'],
            'bytes': measured[side]['parameter_bytes'],
        }
        for side, scores in qualities.items()
    }


def plot_figure(sides: dict[str, dict[str, Any]], shape: str, metric: str) -> Figure:
    """Returns two plots side by side: the score against the time of a call, and the score against the model's size."""
    figure = Figure(figsize=(11, 4.5), layout='constrained')
    axes = figure.subplots(1, 2, sharey=True)
    columns = ('milliseconds', 1.0, f'milliseconds of a call of {shape}'), ('bytes', MEBIBYTE, 'MiB of parameters')
    for axis, (name, unit, label) in zip(axes, columns, strict=True):
        for side, one in sides.items():
            middle, place = statistics.mean(one['qualities']), one[name] / unit
            reach = [[middle - min(one['qualities'])], [max(one['qualities']) - middle]]
            axis.errorbar([place], [middle], yerr=reach, fmt='o', capsize=3)
            has_right = any(1 < other[name] / one[name] < NEAR for other in sides.values())
            offset, at = (-6, 'right') if has_right else (6, 'left')
            axis.annotate(side, (place, middle), textcoords='offset points', xytext=(offset, 5), ha=at, fontsize=9)
        axis.set_xscale('log')
        axis.xaxis.set_major_formatter(LogFormatter())  # ticks have labels such as 100 instead of powers of 10
        axis.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axis.set_xlabel(label)
        axis.grid(alpha=0.3, which='both')
        axis.margins(x=0.2, y=0.15)
    axes[0].set_ylabel(metric)
    return figure


if __name__ == '__main__':
    run_command(main)
