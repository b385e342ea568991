"""Draws line charts of metrics over training steps, as SVG text, with matplotlib and without a display."""

import io
import math
import re
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

Series = tuple[Sequence[float], Sequence[float]]  # (steps, values) of one curve

TRAIN = 'train'
EXACT = ('learning_rate',)  # These metrics have no noise, so their curves are never smoothed.
COLOURS = ('#2563eb', '#ea580c', '#059669', '#7c3aed', '#db2777', '#ca8a04', '#0891b2', '#57534e')
MOST_LETTERS = 44  # maximum total number of characters of all labels in one line of the legend
BASELINE_COLOUR = '#64748b'
MOST_POINTS = 600  # maximum number of points of a curve; longer curves are averaged in groups, to keep the page small
SMOOTHED_FROM = 60  # Curves with fewer points than this are not smoothed.
TEXT_COLOUR, TEXT_SIZE = '#334155', 9


def line_chart(name: str, lines: Mapping[str, Series], baseline: float | None = None) -> str:
    """Draws a chart of one metric as an SVG element, with one line per split of the data.

    Args:
        name: the name of the metric; it decides about smoothing (`EXACT`), and ids in the SVG depend on it.
        lines: {split: (steps, values)}; values that are not finite leave gaps.
        baseline: height of a dashed horizontal line, such as the unigram model's value.
    """
    figure = Figure(figsize=(5.4, 2.9), layout='constrained')
    axes = figure.add_subplot()
    for split, series in lines.items():
        label = split.replace('_', '-')
        _draw_line(axes, *series, label=label, colour=_split_colour(split, lines), may_smooth=name not in EXACT)
    if baseline is not None and math.isfinite(baseline):
        axes.axhline(baseline, color=BASELINE_COLOUR, linestyle=(0, (4, 3)), linewidth=1.2, label='unigram')
    _style_axes(axes)
    if list(lines) != [TRAIN] or baseline is not None:
        _add_legend(figure, axes)
    return _figure_to_svg(figure, name)


def _split_colour(split: str, lines: Mapping[str, Series]) -> str:
    """Returns the colour of a split's curve: the first colour for training, and the other colours in turn for other
    splits.
    """
    others = [other for other in lines if other != TRAIN]
    return COLOURS[0] if split == TRAIN else COLOURS[1 + others.index(split) % (len(COLOURS) - 1)]


def _draw_line(
    axes: Axes, steps: Sequence[float], values: Sequence[float], *, label: str, colour: str, may_smooth: bool
) -> None:
    x, y = _downsample(np.asarray(steps, float)), _downsample(np.asarray(values, float))
    is_smoothed = may_smooth and len(x) >= SMOOTHED_FROM
    marker = 'o' if len(x) <= 30 else None
    if is_smoothed:
        axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.28)
    y = _smoothed(y) if is_smoothed else y
    axes.plot(x, y, color=colour, linewidth=1.8, label=label, marker=marker, markersize=3, solid_capstyle='round')


def _downsample(values: np.ndarray) -> np.ndarray:
    """Shortens a curve: returns means of neighbouring points, in at most MOST_POINTS groups of equal size."""
    groups = np.array_split(values, min(len(values), MOST_POINTS)) if len(values) else []
    return np.array([group.mean() for group in groups])


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Smooths a curve: returns the mean of the finite points in a centred window of about 3 % of all points."""
    width = max(len(values) // 60, 1)
    is_finite = np.isfinite(values)
    sums = np.convolve(np.where(is_finite, values, 0), np.ones(2 * width + 1), 'same')
    counts = np.convolve(is_finite, np.ones(2 * width + 1), 'same')
    return np.where(is_finite, sums / np.maximum(counts, 1), np.nan)


def _style_axes(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=''))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlim(left=0)
    low, high = axes.get_ylim()
    if max(abs(low), abs(high)) >= 10_000:
        axes.yaxis.set_major_formatter(EngFormatter(sep=''))
    elif max(abs(low), abs(high)) < 0.01:
        axes.ticklabel_format(axis='y', style='sci', scilimits=(0, 0), useMathText=True)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel('step', color=TEXT_COLOUR, size=TEXT_SIZE)
    axes.tick_params(colors=TEXT_COLOUR, labelsize=TEXT_SIZE, length=0)
    axes.grid(axis='y', color='#e2e8f0', linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ('top', 'right', 'left'):
        axes.spines[side].set_visible(False)
    axes.spines['bottom'].set_color('#cbd5e1')


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Places the legend above the curves, because matplotlib's search for free space among many points takes
    seconds.
    """
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), MOST_LETTERS // (4 + max(map(len, labels)))))
    look = {'frameon': False, 'fontsize': TEXT_SIZE, 'labelcolor': TEXT_COLOUR}
    figure.legend(handles, labels, loc='outside upper right', ncols=columns, **look)


def _figure_to_svg(figure: Figure, name: str) -> str:
    """Returns the figure as an <svg> element that fills its container and uses the fonts of the surrounding page."""
    text = io.StringIO()
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': name}):
        figure.savefig(text, format='svg', transparent=True, metadata={'Date': None, 'Creator': None})
    element = text.getvalue()[text.getvalue().index('<svg') :]
    for unwanted in (r' (width|height)="[\d.]+pt"', r' font-family: [^;"]*;', r'<!--.*?-->'):
        element = re.sub(unwanted, '', element)
    return re.sub(r'<metadata>.*?</metadata>|<style.*?</style>', '', element, flags=re.DOTALL)
