"""Writes the results of a sweep: `trials.json`, a table `sweep.md` and a page `sweep.html`; and its SLURM script."""

import json
import math
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from efficient_attention.atomic_files import write_atomically
from efficient_attention.experiments.sweep import Result, Sweep

TABLE, PAGE, RESULTS = 'sweep.md', 'sweep.html', 'trials.json'
STYLE = (
    'body { font: 15px system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }'
    'table { border-collapse: collapse } td, th { border-bottom: 1px solid #cbd5e1 }'
    'td, th { padding: .3em .8em; text-align: left }'
    'svg { margin: 1em 1em 0 0 } code { overflow-wrap: anywhere }'
)
WIDTH, HEIGHT, EDGE = 260, 160, 28  # a chart's size and the room around its points, in pixels


def write_sweep_report(sweep: Sweep, results: Sequence[Result]) -> list[Path]:
    """Writes a sweep's results to `trials.json`, `sweep.md` and `sweep.html` in its folder; returns these paths."""
    texts = {
        RESULTS: json.dumps({'metric': sweep.metric, 'mode': sweep.mode, 'trials': list(results)}, indent=1) + '\n',
        TABLE: sweep_table(sweep, results),
        PAGE: sweep_page(sweep, results),
    }
    for name, text in texts.items():
        write_atomically(sweep.workdir / name, text)
    return [sweep.workdir / name for name in texts]


def ranked(sweep: Sweep, results: Sequence[Result]) -> list[Result]:
    """Returns the successful trials, the best first."""
    sign = 1 if sweep.mode == 'min' else -1
    return sorted((one for one in results if 'value' in one), key=lambda one: sign * one['value'])


def table_rows(sweep: Sweep, results: Sequence[Result]) -> list[list[str]]:
    """Returns the rows of a sweep's table: the header, the successful trials from best to worst, the failed trials."""
    names = [field.name for field in sweep.search]
    rows = [['trial', *names, f'{sweep.metric} ({sweep.mode})']]
    for one in ranked(sweep, results):
        deviation = f' ± {one["deviation"][sweep.metric]:.4f}' if len(one['seeds']) > 1 else ''
        rows.append([str(one['number']), *(str(one['fields'][name]) for name in names)])
        rows[-1].append(f'{one["value"]:.4f}{deviation}')
    for one in results:
        if 'value' not in one:
            rows.append([str(one['number']), *(str(one['fields'][name]) for name in names), f'failed: {one["error"]}'])
    return rows


def sweep_table(sweep: Sweep, results: Sequence[Result]) -> str:
    """Returns a sweep's results as a Markdown table, and a sentence on its trials."""
    rows = [[cell.replace('|', '/') for cell in row] for row in table_rows(sweep, results)]
    lines = [f'| {" | ".join(row)} |' for row in rows]
    return '\n'.join([lines[0], '|' + '---|' * len(rows[0]), *lines[1:], '', sweep_sentence(sweep, results), ''])


def sweep_sentence(sweep: Sweep, results: Sequence[Result]) -> str:
    """Returns a sentence on the number of finished trials, the sampler and the seeds."""
    seeds = f'seed {sweep.seeds[0]}' if len(sweep.seeds) == 1 else f'the mean over the seeds {", ".join(sweep.seeds)}'
    done = len(ranked(sweep, results))
    return (
        f'{done} of {sweep.trials} trials are finished ({sweep.sampler} search). The metric is {sweep.metric} of the '
        f"best evaluation, {seeds}. The trials were ranked on this metric, so the best trial's value is optimistic."
    )


def sweep_page(sweep: Sweep, results: Sequence[Result]) -> str:
    """Returns an HTML page: the best trial's fields as flags, the table, and one chart per field."""
    heads, *rows = [[escape(cell) for cell in row] for row in table_rows(sweep, results)]
    table = ''.join(f'<tr>{"".join(f"<td>{cell}</td>" for cell in row)}</tr>' for row in rows)
    parts = [f'<p>{escape(sweep_sentence(sweep, results))}</p>']
    if best := ranked(sweep, results)[:1]:
        parts.append(f'<p>The best trial has the flags <code>{escape(field_flags(best[0]))}</code></p>')
    parts.append(f'<table><tr>{"".join(f"<th>{cell}</th>" for cell in heads)}</tr>{table}</table>')
    parts += [field_chart(sweep, ranked(sweep, results), field.name) for field in sweep.search]
    title = escape(f'Sweep {sweep.workdir.name}')
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1>{"".join(parts)}</body></html>\n'


def field_flags(result: Result) -> str:
    """Returns a trial's fields as command-line flags of `train`."""
    return shlex.join(f'--config.{name}={value}' for name, value in result['fields'].items())


def field_chart(sweep: Sweep, results: Sequence[Result], name: str) -> str:
    """Returns an SVG scatter chart of a field's value (across) and the metric (up) per trial; '' without trials."""
    if not results:
        return ''
    field = next(one for one in sweep.search if one.name == name)
    values = [one['fields'][name] for one in results]
    places = [float(field.values.index(value)) if field.kind == 'choice' else float(value) for value in values]
    places = [math.log(place) for place in places] if field.kind == 'log' else places
    points = zip(scaled(places, WIDTH), scaled([-one['value'] for one in results], HEIGHT), results, strict=True)
    circles = ''.join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#2563eb"><title>trial {one["number"]}: '
        f'{escape(str(one["fields"][name]))}, {one["value"]:.4f}</title></circle>'
        for x, y, one in points
    )
    ends = [values[places.index(pick(places))] for pick in (min, max)]
    words = ''.join(
        f'<text x="{x}" y="{HEIGHT - 4}" font-size="11" text-anchor="{anchor}">{escape(str(value))}</text>'
        for x, anchor, value in zip((4, WIDTH - 4), ('start', 'end'), ends, strict=True)
    )
    title = f'<text x="4" y="14" font-size="12">{escape(f"{sweep.metric} by {name}")}</text>'
    return f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">{title}{circles}{words}</svg>'


def scaled(numbers: Sequence[float], size: int) -> list[float]:
    """Returns numbers mapped linearly to pixels between `EDGE` and `size - EDGE`; the middle if all are equal."""
    low, high = min(numbers), max(numbers)
    if low == high:
        return [size / 2] * len(numbers)
    return [EDGE + (number - low) / (high - low) * (size - 2 * EDGE) for number in numbers]


def slurm_script(sweep: Sweep, command: Sequence[str], folder: Path) -> str:
    """Returns a SLURM batch script that trains each trial as a task of a job array.

    Args:
        sweep: the plan; its sampler is random or grid.
        command: the words of the command that trains the sweep.
        folder: the folder in which the command runs.
    """
    words = shlex.join(command)
    return '\n'.join(
        [
            '#!/bin/bash',
            f'#SBATCH --job-name={sweep.workdir.name or "sweep"}',
            f'#SBATCH --array=0-{sweep.trials - 1}',
            '#SBATCH --output=sweep-%A_%a.out',
            '# Add the lines of your cluster here: --partition, --gres, --time.',
            f'cd {shlex.quote(str(folder))} || exit 1',
            f'{words} --trial "$SLURM_ARRAY_TASK_ID"',
            '# When all tasks have ended, this command writes the table:',
            f'# {words}',
            '',
        ]
    )
