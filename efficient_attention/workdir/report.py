"""Writes the HTML report of a run, `report.html`: one page with its state, curves, samples, config and environment.

    efficient-attention report --workdir runs/x

The page is self-contained. At any time, even during the run, it is made only from files of the workdir:
`metrics.jsonl`, `samples.jsonl`, `status.json`, `config.json` and `environment.json`. A script of the page draws the
curves. The content security policy of the page allows only this script and forbids every request.
"""

import base64
import datetime
import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.dict_conversion import default_fields, flatten
from efficient_attention.config.evaluation import has_held_out
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, counted, is_whole_number
from efficient_attention.workdir.environment import read_environment
from efficient_attention.workdir.last_saved_step import read_last_saved_step
from efficient_attention.workdir.metric_definitions import SPLITS, define_metric
from efficient_attention.workdir.metrics import FILE_NAME as METRICS_FILE
from efficient_attention.workdir.metrics import parse_metrics_log, unreadable_lines_note
from efficient_attention.workdir.run_status import COMPLETE, FAILED, KILLED, RUNNING, STOPPED, RunStatus, read_status
from efficient_attention.workdir.samples_log import PARTS, read_samples

FILE_NAME = 'report.html'
CONFIG_FILE = 'config.json'
TEMPLATES = Path(__file__).parent / 'report_page'
TRAIN = 'train'
EXACT = ('learning_rate',)  # These metrics have no noise, so their curves are never smoothed.
# A metric with this word in its name, such as 'unigram_loss', is the baseline of the metric without it, 'loss'.
BASELINE = 'unigram'
# Metrics whose names contain these words are shown first in the report.
FIRST = ('loss', 'accuracy', 'learning_rate', 'tokens_per_second')
NOT_METRICS = ('step', 'split')
# Longer curves are averaged in groups of steps, and the page gets the lowest and the highest value of each group.
MOST_POINTS = 1000
MOST_SAMPLES = 20  # The page shows the samples of at most this many evaluations: the newest, and some of all others.
DIGITS = 6  # significant digits of the numbers in the page
STATES = {
    RUNNING: 'running',
    COMPLETE: 'complete',
    STOPPED: 'stopped',
    FAILED: 'failed',
    KILLED: 'ended unexpectedly (killed?)',
    'unknown': 'state not recorded',
}
LOG = logging.getLogger(__name__)

Line = Mapping[str, Any]  # one line of metrics.jsonl
Series = tuple[Sequence[float], Sequence[float]]  # (steps, values) of one curve


def write_report(workdir: Path) -> Path:
    """Writes the HTML report of a run into its workdir, and returns the path of the report.

    Raises:
        InputError: the workdir holds no metrics that can be read, or another file in it is damaged.
    """
    lines, dropped = parse_metrics_log(workdir)
    notes = unreadable_lines_note(workdir, dropped)
    if not lines:
        raise InputError(next(iter(notes), f'there is nothing to report: {workdir / METRICS_FILE} is missing or empty'))
    for note in notes:
        LOG.warning('%s', note)
    config, status, series = _read_config(workdir / CONFIG_FILE), read_status(workdir), metric_series(lines)
    baselines = unigram_baselines(lines)
    last_step = max(max(line['step'] for line in lines), read_last_saved_step(workdir) or 0)
    content = {
        'title': workdir.resolve().name,
        'state': _state(status, last_step, flatten(config).get('train.steps')),
        'tiles': _tiles(last_step, series, baselines, status),
        'facts': _facts(status),
        'last': _last_values(lines, series, baselines),
        'is_not_evaluated': not _is_evaluated(config),
        'data': {'charts': _charts(series, baselines)},
        'samples': _samples(workdir),
        'config': _config_fields(config),
        'environment': list(read_environment(workdir).items()),
        'terms': _terms(series),
        'written': _time_text(datetime.datetime.now().timestamp()),
    }
    path = workdir / FILE_NAME
    write_atomically(path, render_page('page.html', **content))
    return path


def render_page(template: str, **content: Any) -> str:
    """Returns a self-contained page as HTML, with the style and the chart script that all pages share.

    Args:
        template: the name of a template in `report_page/`.
        content: the values that the template reads, besides 'style', 'script' and 'policy'.
    """
    style, script = ((TEMPLATES / name).read_text(encoding='utf-8') for name in ('style.css', 'charts.js'))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    policy = Markup(_content_security_policy(style, script))
    shared = {'style': Markup(style), 'script': Markup(script), 'policy': policy}
    return environment.get_template(template).render(content | shared)


def metric_series(lines: Sequence[Line]) -> dict[str, dict[str, Series]]:
    """Returns the curves of all metrics as {metric: {split: (steps, values)}}, in the order in which the report shows
    the metrics.
    """
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for line in lines:
        for name, value in line.items():
            if name not in NOT_METRICS and isinstance(value, (int, float)):
                steps, values = found.setdefault(name, {}).setdefault(line['split'], ([], []))
                steps.append(line['step'])
                values.append(value)
    return {name: {**found[name]} for name in sorted(found, key=_metric_sort_key)}


def unigram_baselines(lines: Sequence[Line]) -> dict[str, float]:
    """Returns {metric: the unigram model's score}. The baseline of 'loss', for example, is the last value of
    'unigram_loss'.
    """
    found = {}
    for line in lines:
        for name, value in line.items():
            if BASELINE in name.split('_') and isinstance(value, (int, float)):
                found['_'.join(word for word in name.split('_') if word != BASELINE)] = float(value)
    return found


def _metric_sort_key(name: str) -> tuple[int, int]:
    """Returns the key by which the report sorts metrics: the index of the earliest word in FIRST that the metric's name
    contains, then the length of the name.
    """
    places = [place for place, word in enumerate(FIRST) if word in name]
    return min(places, default=len(FIRST)), len(name)


def _is_baseline(name: str) -> bool:
    return BASELINE in name.split('_')


def _content_security_policy(style: str, script: str) -> str:
    """Returns the content security policy of the page: no requests, and no script or style except these texts."""

    def allowed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {allowed(style)}; script-src {allowed(script)}; base-uri 'none'; "
        "form-action 'none'"
    )


def _state(status: RunStatus | None, last_step: int, total_steps: Any) -> dict[str, str]:
    """Returns the run's state as texts for the page: state, description, step and error message."""
    kind = status.current_state if status else 'unknown'
    of_total = f' of {total_steps:,}' if is_whole_number(total_steps) else ''
    place = f'{last_step:,}{of_total} steps' if kind == COMPLETE else f'at step {last_step:,}{of_total}'
    if kind == COMPLETE and is_whole_number(total_steps) and last_step < total_steps:
        place += ', ended by early stopping'
    return {'kind': kind, 'words': STATES[kind], 'step': place, 'error': status.error if status else ''}


def _tiles(
    last_step: int,
    series: Mapping[str, Mapping[str, Series]],
    baselines: Mapping[str, float],
    status: RunStatus | None,
) -> list[dict]:
    """Returns the most important figures of a run: its step, duration, speed and first validation metric."""
    tiles = [('steps', f'{last_step:,}')]
    if status:
        tiles.append(('duration, all starts', _duration_text(status.seconds)))
    speeds = sorted(series.get('tokens_per_second', {}).get(TRAIN, ([], []))[1])
    if speeds:
        tiles.append(('tokens/s, median', f'{speeds[len(speeds) // 2]:,.0f}'))
    name, split = next(
        ((name, split) for name, splits in series.items() for split in splits if split != TRAIN), (None, '')
    )
    compared = next((name for name, splits in series.items() if name in baselines and set(splits) - {TRAIN}), None)
    if compared:  # A metric with a baseline says more than another metric.
        name, split = compared, next(split for split in series[compared] if split != TRAIN)
    if name:
        value = series[name][split][1][-1]
        tiles.append((f'{_display_name(split)} {_display_name(name)}', _format_number(value)))
        if name in baselines:
            change = _change_from_baseline(value, baselines[name])
            tiles.append((f'than the unigram loss, {_format_number(baselines[name])}', change))
    return [{'label': label, 'value': value} for label, value in tiles]


def _facts(status: RunStatus | None) -> list[tuple[str, str]]:
    """Returns when and how a run was started, as (name, text) pairs; [] if the workdir has no status file."""
    if status is None:
        return []
    facts = [
        ('command', status.command),
        ('started', _time_text(status.first_started)),
        ('last sign of life' if status.state == RUNNING else 'ended', _time_text(status.seen)),
        ('duration', f'{_duration_text(status.seconds)} (hours:minutes:seconds)'),
    ]
    if status.starts > 1:
        facts.insert(2, ('newest start', f'{_time_text(status.started)}, {counted(status.starts, "start")} in all'))
    return facts


def _last_values(
    lines: Sequence[Line], series: Mapping[str, Mapping[str, Series]], baselines: Mapping[str, float]
) -> dict[str, Any]:
    """Returns a table of the last value of each metric per split, and of the unigram baselines."""
    last: dict[str, int] = {}
    for line in lines:
        last[line['split']] = max(line['step'], last.get(line['split'], 0))
    heads = ['metric', *(f'{_display_name(split)}, step {step:,}' for split, step in last.items())]
    heads += ['unigram'] if baselines else []
    rows = []
    for name, splits in series.items():
        if not _is_baseline(name):
            values = [splits[split][1][-1] if split in splits else None for split in last]
            values += [baselines.get(name)] if baselines else []
            rows.append((name, *map(_format_number, values)))
    return {'heads': heads, 'rows': rows}


def _is_evaluated(config: Mapping[str, Any]) -> bool:
    """Returns whether the run has a validation set; True if the config does not say."""
    fields = flatten(config)
    share = fields.get('data.held_out', 1.0)
    return has_held_out(share if isinstance(share, (int, float)) else 1.0, fields.get('eval.split', 'held_out'))


def _charts(series: Mapping[str, Mapping[str, Series]], baselines: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns the numbers of all charts, as JSON values for the script of the page.

    A metric that never changes, or is never finite, has no chart; the learning rate has a chart even if constant.
    """
    charts = []
    for name, splits in series.items():
        known = {value for _, values in splits.values() for value in values if math.isfinite(value)}
        if _is_baseline(name) or len(known) < (1 if name in EXACT else 2):
            continue
        baseline = baselines.get(name, math.nan)
        chart = {
            'title': name,
            'unit': define_metric(name)[1],
            'exact': name in EXACT,
            'baseline': baseline if math.isfinite(baseline) else None,
            'lines': [{'label': _display_name(split), **thin_curve(*points)} for split, points in splits.items()],
        }
        charts.append(chart)
    return charts


def thin_curve(steps: Sequence[float], values: Sequence[float]) -> dict[str, Any]:
    """Returns a curve of at most MOST_POINTS points as JSON values: 'steps' and 'values'.

    Values that are not finite become None. For a longer curve, 'values' has the mean of each group of steps, and 'low'
    and 'high' have its lowest and highest value.
    """
    if len(values) <= MOST_POINTS:
        return {'steps': list(steps), 'values': list(map(_rounded, values))}
    groups = np.array_split(np.asarray(values, float), MOST_POINTS)
    finite = [group[np.isfinite(group)] for group in groups]
    numbers = {
        name: [_rounded(float(reduce(group))) if len(group) else None for group in finite]
        for name, reduce in (('values', np.mean), ('low', np.min), ('high', np.max))
    }
    middles = [round(float(group.mean())) for group in np.array_split(np.asarray(steps, float), MOST_POINTS)]
    return {'steps': [*middles[:-1], steps[-1]], **numbers}


def _samples(workdir: Path) -> list[dict[str, Any]]:
    """Returns the samples of the evaluations that the page shows, newest first."""
    found = read_samples(workdir)[::-1]
    every = -(-len(found) // MOST_SAMPLES) or 1
    return [
        {
            'step': f'{line["step"]:,}',
            'kind': line['kind'],
            'samples': [[(part, sample[part]) for part in PARTS if part in sample] for sample in line['samples']],
        }
        for line in found[::every]
    ]


def _config_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the run's config by group, and the fields that differ from their defaults."""
    defaults = flatten(default_fields(RunConfig))
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, value in flatten(config).items():
        group, _, short = name.partition('.') if '.' in name else ('', '', name)
        field = {
            'name': name,
            'short': short,
            'value': _as_plain_text(value),
            'default': _as_plain_text(defaults[name]) if name in defaults else 'none',
            'is_changed': name in defaults and value != defaults[name],
        }
        groups.setdefault(group or 'run', []).append(field)
    return {
        'groups': [{'name': name, 'fields': fields} for name, fields in groups.items()],
        'changed': [field for fields in groups.values() for field in fields if field['is_changed']],
    }


def _terms(series: Mapping[str, Mapping[str, Series]]) -> list[dict[str, str]]:
    """Returns the definitions of the words of the page: steps, units, splits and the metrics of this run."""
    splits = dict.fromkeys(split for of_metric in series.values() for split in of_metric)
    fixed = [
        ('step', '', 'One update of the parameters, from one batch.'),
        ('nats', '', 'Natural logarithms of probabilities: 1 nat = 1.443 bits.'),
        *((_display_name(split), '', SPLITS[split]) for split in splits if split in SPLITS),
    ]
    defined = [(name, *define_metric(name)) for name in series]
    metrics = [(name, unit, meaning) for name, meaning, unit in defined if meaning]
    return [{'name': name, 'unit': unit, 'meaning': meaning} for name, unit, meaning in [*fixed, *metrics]]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        found = read_json_file(path) if path.exists() else {}
    except ValueError as error:
        raise InputError(f'{path} is not JSON: {error}') from None
    if not isinstance(found, dict):
        raise InputError(f'{path}: no JSON object')
    return found


def _display_name(name: str) -> str:
    return {'held_out': 'held-out'}.get(name, name.replace('_', ' '))


def _rounded(value: float) -> float | int | None:
    """Returns a number with DIGITS significant digits; None if it is not finite."""
    if not math.isfinite(value):
        return None
    rounded = float(f'{value:.{DIGITS}g}')
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _format_number(value: float | None) -> str:
    if value is None:
        return ''
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() or abs(value) >= 10_000:
        return f'{value:,.0f}'
    return f'{value:.4g}' if abs(value) < 1 else f'{value:,.4f}'


def _change_from_baseline(value: float, baseline: float) -> str:
    """Returns the relative change from the baseline as text, such as '12.3% lower' or '12.3% higher'."""
    share = (value - baseline) / baseline if baseline else 0.0
    return f'{abs(share):.1%} {"higher" if share > 0 else "lower"}'


def _as_plain_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time_text(seconds: float) -> str:
    """Returns a time, given in seconds since 1970, as text in universal time."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime('%Y-%m-%d %H:%M:%S UTC')


def _duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes // 60:,}:{minutes % 60:02}:{rest:02}'
