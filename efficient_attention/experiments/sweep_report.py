"""Writes the results of a sweep: `trials.json`, a table `sweep.md` and a page `sweep.html`; and its SLURM script."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.experiments.search_space import CHOICE, SearchedField
from efficient_attention.experiments.sweep import Result, Sweep
from efficient_attention.workdir.report import render_page

TABLE, PAGE, RESULTS = 'sweep.md', 'sweep.html', 'trials.json'


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
    """Returns the rows of a sweep's table: the header, the successful trials from best to worst, the failed trials.

    Numbers have four significant digits; `trials.json` has them in full.
    """
    names = [field.name for field in sweep.search]
    rows = [['trial', *names, f'{sweep.metric} ({sweep.mode})']]
    for one in ranked(sweep, results):
        deviation = f' ± {one["deviation"][sweep.metric]:.4f}' if len(one['seeds']) > 1 else ''
        rows.append([str(one['number']), *(_text_of_value(one['fields'][name]) for name in names)])
        rows[-1].append(f'{one["value"]:.4f}{deviation}')
    for one in results:
        if 'value' not in one:
            values = [_text_of_value(one['fields'][name]) for name in names]
            rows.append([str(one['number']), *values, f'failed: {one["error"]}'])
    return rows


def _text_of_value(value: Any) -> str:
    """Returns a field's value for the table."""
    return f'{value:.4g}' if isinstance(value, float) else str(value)


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
    """Returns a page as HTML: the table, the best trial's fields as flags, and a chart of the metric per field."""
    heads, *rows = table_rows(sweep, results)
    done = ranked(sweep, results)
    return render_page(
        'sweep.html',
        title=f'Sweep {sweep.workdir.name}',
        sentence=sweep_sentence(sweep, results),
        best=field_flags(done[0]) if done else '',
        heads=heads,
        rows=rows,
        data={'charts': [field_chart(sweep, done, field) for field in sweep.search] if done else []},
    )


def field_flags(result: Result) -> str:
    """Returns a trial's fields as command-line flags of `train`, one a line; a shell reads them as one command."""
    return ' \\\n'.join(shlex.quote(f'--config.{name}={value}') for name, value in result['fields'].items())


def field_chart(sweep: Sweep, results: Sequence[Result], field: SearchedField) -> dict[str, Any]:
    """Returns a chart for the page's script: one point per trial, a field's value by the metric.

    A field with listed values has its values as names on the axis, in the order in which they are listed.
    """
    values = [one['fields'][field.name] for one in results]
    names = [str(value) for value in field.values] if field.kind == CHOICE else None
    places = [field.values.index(value) for value in values] if names else values
    low, high = (-0.5, len(names) - 0.5) if names else (min(places), max(places))
    axis = {'label': field.name, 'low': low, 'high': high, 'is_log': field.kind == 'log', 'names': names}
    line = {'label': 'trial', 'steps': places, 'values': [one['value'] for one in results]}
    line['names'] = [f'trial {one["number"]}, {value}' for one, value in zip(results, values, strict=True)]
    title = f'{sweep.metric} by {field.name}'
    return {'title': title, 'unit': '', 'exact': True, 'baseline': None, 'axis': axis, 'lines': [line]}


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
            '# When all tasks have ended, this command writes the table and the page, and trains nothing:',
            f'# {words} --table',
            '',
        ]
    )
