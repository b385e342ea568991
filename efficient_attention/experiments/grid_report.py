"""Writes the results of a grid: `grid.json`, a Markdown table `grid.md` and a plot `grid.svg`."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.experiments.grid import FULL
from efficient_attention.workdir.folder_kind import GRID_SUMMARY

Cells = Mapping[str, Mapping[str, Any]]
MORE_PARAMETERS = 1.1  # A cell with more than this many times the parameters of full attention is marked in the table.
MIB = 2**20
STEPS = 'steps/s, share of full'
HEAD = ('mechanism', '{metric}', 'validation', STEPS, 'temporary MiB, share of full', 'parameters', 'minutes', 'rate')
LEGEND = (
    'The number after ± is the standard deviation over seeds. `<` marks a mechanism that scores below the best '
    'baseline. `+` marks a mechanism with more than 1.1 times the parameters of full attention. `*` marks a mechanism '
    'that tested other learning rates than full attention. The column of temporary memory is what the compiler reports '
    'for a training step with rows of full length. Its share of full attention is left out for a mechanism with other '
    'micro-batches or rematerialisation than full attention has.'
)
OF_SPEED = (
    ' Steps per second are the median of the training log. Their share of full attention is left out for a mechanism '
    'that was trained on another machine.'
)
OF_MINUTES = (
    ' The column of minutes gives the training time of one seed and, after a +, the time of the trial runs if it is '
    'known. Evaluation time is not included.'
)


def write_grid(cells: Cells, yardsticks: Mapping[str, Mapping[str, float]], workdir: Path) -> list[Path]:
    """Writes a grid's results to `grid.json`, `grid.md` and `grid.svg` in its workdir; returns the paths of these
    files.
    """
    content = {'cells': cells, 'yardsticks': yardsticks}
    texts = {
        GRID_SUMMARY: json.dumps(content, indent=2) + '\n',
        'grid.md': grid_table(cells, yardsticks),
        'grid.svg': grid_picture(cells, yardsticks),
    }
    for name, text in texts.items():
        write_atomically(workdir / name, text)
    return [workdir / name for name in texts]


def read_known_baselines(workdir: Path) -> dict[str, dict[str, float]]:
    """Returns the baselines of all rows that earlier commands wrote into `grid.json`; {} if there are none."""
    try:
        return dict(read_json_file(workdir / GRID_SUMMARY)['yardsticks'])
    except (OSError, ValueError, TypeError, KeyError):
        return {}  # Before the first report, grid.json does not exist.


def grid_table(cells: Cells, yardsticks: Mapping[str, Mapping[str, float]], *, with_speed: bool = True) -> str:
    """Returns one Markdown table per grid row, with the best mechanism first, and notes on how the cells were trained.

    Args:
        cells: {row: {column: result of `train_cell`}}.
        yardsticks: {row: {name: accuracy}} of the baselines.
        with_speed: include steps per second, which mean little if several cells shared a device.
    """
    parts = [_row_table(row, columns, yardsticks.get(row, {}), with_speed) for row, columns in cells.items()]
    return '\n'.join([*parts, LEGEND + OF_SPEED * with_speed + OF_MINUTES, ''])


def _row_table(row: str, columns: Mapping[str, Any], yardsticks: Mapping[str, float], with_speed: bool) -> str:
    good = {name: cell for name, cell in columns.items() if 'error' not in cell}
    metric = next((cell['metric'] for cell in good.values()), 'metric')
    lines = [[name.format(metric=metric) for name in HEAD], ['---'] * len(HEAD)]
    for name in reversed(_sorted_worst_first(good, metric)):
        lines.append(_cell_line(name, good[name], good.get(FULL), metric, yardsticks))
    empty = [''] * (len(HEAD) - 2)
    for key, what in (('failed_seed', 'a further seed failed'), ('error', 'failed')):
        bad = {name: cell[key].replace('|', '/') for name, cell in columns.items() if key in cell}
        lines += [[name, f'{what}: {error}', *empty] for name, error in bad.items()]
    lines += [[f'*baseline: {name}*', f'{100 * value:.1f}', *empty] for name, value in yardsticks.items()]
    shown = [place for place, name in enumerate(HEAD) if with_speed or name != STEPS]
    table = [_table_line([line[place] for place in shown]) for line in lines]
    return '\n'.join([f'### {row}', '', *table, '', *_notes(good)])


def _table_line(texts: Sequence[str]) -> str:
    if set(texts) == {'---'}:
        return '|' + '---|' * len(texts)
    return '|' + '|'.join(f' {text} ' if text else ' ' for text in texts) + '|'


def _notes(good: Mapping[str, Any]) -> list[str]:
    """Returns a sentence or more on a grid row: the data, seeds and machines of its cells, if known, and their total
    time.
    """
    notes = []
    shared: Mapping[str, Any] = next((cell['shared_fields'] for cell in good.values() if 'shared_fields' in cell), {})
    if rows := shared.get('examples.train'):
        notes.append(f'Each mechanism trained for {next(iter(good.values()))["steps"]:,} steps on rows of `{rows}`.')
    if any(tuple(cell['seeds']) != ('0',) for cell in good.values()):
        notes.append(
            f'The seeds are: {_group_by_value({name: ", ".join(cell["seeds"]) for name, cell in good.items()})}.'
        )
    if any(cell.get('machine') for cell in good.values()):
        machines = {name: cell.get('machine', 'an unknown machine') for name, cell in good.items()}
        notes.append(f'Trained on: {_group_by_value(machines)}.')
    if good:
        hours = sum(cell['seconds'] * len(cell['seeds']) + cell.get('pilot_seconds', 0) for cell in good.values())
        notes.append(f'All runs of this table took {hours / 3600:.1f} hours.')
    return [' '.join(notes), ''] if notes else []


def _group_by_value(values: Mapping[str, str]) -> str:
    """Returns a text that lists which mechanisms have which value; mechanisms with the most common value come last, as
    'the others'.
    """
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    *fewer, most = sorted(names, key=lambda value: len(names[value]))
    named = [f'{", ".join(names[value])}: {value}' for value in fewer]
    return '; '.join([*named, f'the others: {most}' if fewer else most])


def _cell_line(
    name: str, cell: Mapping[str, Any], full: Mapping[str, Any] | None, metric: str, yardsticks: Mapping[str, float]
) -> list[str]:
    mean, deviation = cell['mean'][metric], cell['deviation'][metric]
    shown = _format_score(cell, mean) + (f' ± {_format_score(cell, deviation)}' if len(cell['seeds']) > 1 else '')
    shown += ' <' if _is_percentage(cell) and mean < max(yardsticks.values(), default=-math.inf) else ''
    dev = sum(one['dev'][metric] for one in cell['seeds'].values()) / len(cell['seeds'])
    is_larger = full is not None and cell['parameters'] > MORE_PARAMETERS * full['parameters']
    peer = full if full and full.get('machine') == cell.get('machine') else None
    of_same_step = full if full and _has_same_step_fields(cell, full) else None
    speed = f'{cell["steps_per_second"]:.2f}{_ratio_to_full_attention(cell, peer, "steps_per_second")}'
    memory = f'{cell["temporary_bytes"] / MIB:,.0f}{_ratio_to_full_attention(cell, of_same_step, "temporary_bytes")}'
    parameters = f'{cell["parameters"]:,}{" +" if is_larger else ""}'
    has_other_rates = full is not None and not _has_same_sweep(cell, full)
    minutes = ' + '.join(
        _format_minutes(seconds) for seconds in (cell['seconds'], cell.get('pilot_seconds')) if seconds
    )
    rate = f'{cell["learning_rate"]:g}{" *" if has_other_rates else ""}'
    return [name, shown, _format_score(cell, dev), speed, memory, parameters, minutes, rate]


def _format_minutes(seconds: float) -> str:
    return f'{seconds / 60:.{0 if seconds >= 600 else 1}f}'


def _has_same_sweep(cell: Mapping[str, Any], full: Mapping[str, Any]) -> bool:
    """Returns whether both cells tried the same learning rates with equally many steps per trial run."""
    rates = [one.get('pilots', {}).keys() for one in (cell, full)]
    return rates[0] == rates[1] and (not rates[0] or cell['pilot_steps'] == full['pilot_steps'])


def _has_same_step_fields(cell: Mapping[str, Any], full: Mapping[str, Any]) -> bool:
    """Returns whether both cells have the same micro-batches and recompute the same activations; cells without this
    record count as equal.
    """
    return cell.get('step_fields') == full.get('step_fields')


def _is_percentage(cell: Mapping[str, Any]) -> bool:
    """Returns whether a cell's metric is a share of 1, where higher is better, and is shown in percent."""
    return cell.get('mode', 'max') == 'max'


def _format_score(cell: Mapping[str, Any], value: float) -> str:
    return f'{100 * value:.1f}' if _is_percentage(cell) else f'{value:.3f}'


def _sorted_worst_first(columns: Mapping[str, Any], metric: str) -> list[str]:
    return sorted(
        columns, key=lambda name: (1 if _is_percentage(columns[name]) else -1) * columns[name]['mean'][metric]
    )


def _ratio_to_full_attention(cell: Mapping[str, Any], full: Mapping[str, Any] | None, name: str) -> str:
    return '' if full is None or not full[name] else f', {cell[name] / full[name]:.2f}'


def grid_picture(cells: Cells, yardsticks: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a plot as SVG text, with one panel per grid row: bars for mechanisms, dots for seeds, dashed lines for
    baselines.
    """
    # Matplotlib is imported here, because it is slow and needed only at the end of a grid.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = {
        row: {name: cell for name, cell in columns.items() if 'error' not in cell} for row, columns in cells.items()
    }
    rows = {row: columns for row, columns in rows.items() if columns}
    heights = [1.0 + 0.26 * len(columns) for columns in rows.values()] or [1.0]
    with rc_context({'svg.hashsalt': 'grid'}):
        # Matplotlib writes SVG files at 72 dpi.
        figure = Figure(figsize=(7.2, sum(heights)), dpi=72, layout='constrained')
        panels = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={'height_ratios': heights})[:, 0]
        for axes, (row, columns) in zip(panels, rows.items(), strict=False):
            _draw_row(axes, row, columns, yardsticks.get(row, {}))
        _round_panel_positions(figure, panels)
        text = io.StringIO()
        figure.savefig(text, format='svg', metadata={'Date': None})
    return text.getvalue()


def _round_panel_positions(figure: Any, panels: Any) -> None:
    """Fixes the positions of the panels at rounded numbers, so that every process writes the same SVG file.

    Ids in the SVG file depend on the positions, and the last bits of the computed positions differ between processes.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine('none')
    for axes in panels:
        axes.set_position([round(float(x), 5) for x in axes.get_position().bounds])


def _draw_row(axes: Any, row: str, columns: Mapping[str, Any], yardsticks: Mapping[str, float]) -> None:
    metric = next(iter(columns.values()))['metric']
    order = _sorted_worst_first(columns, metric)
    scale, unit = (100, ', %') if all(map(_is_percentage, columns.values())) else (1, '')
    means = [scale * columns[name]['mean'][metric] for name in order]
    axes.barh(order, means, color=['#2563eb' if name != FULL else '#64748b' for name in order], height=0.7)
    for place, name in enumerate(order):
        seeds = [scale * one['test'][metric] for one in columns[name]['seeds'].values()]
        axes.plot(seeds, [place] * len(seeds), 'o', color='#ea580c', markersize=3)
    for number, (name, value) in enumerate(yardsticks.items() if unit else ()):
        dashes = (0, (5 - number % 4, 1 + number % 4))
        axes.axvline(100 * value, color='#334155', linestyle=dashes, linewidth=1, label=f'{name} {100 * value:.1f}')
    if unit and yardsticks:
        axes.legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1), title='baselines', title_fontsize=7)
    axes.set_title(f'{row}: {metric} on the test rows{unit}', fontsize=9)
    axes.tick_params(labelsize=8)
