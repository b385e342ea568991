"""Writes the HTML report of a run, `report.html`: one page with curves, final metrics, config and environment.

    python -m efficient_attention.workdir.report runs/x

The page is self-contained. It is made only from `metrics.jsonl`, `config.json` and `environment.json` of a workdir, at
any time, even during the run.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled before the other imports, which are slow.

import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.config.dict_conversion import flatten
from efficient_attention.config.evaluation import has_held_out
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, is_whole_number
from efficient_attention.workdir.environment import read_environment
from efficient_attention.workdir.metrics import FILE_NAME as METRICS_FILE
from efficient_attention.workdir.metrics import parse_metrics_log, unreadable_lines_note
from efficient_attention.workdir.report_charts import TRAIN, Series, line_chart

FILE_NAME = 'report.html'
CONFIG_FILE = 'config.json'
# A metric with this word in its name, such as 'unigram_loss', is the baseline of the metric without it, 'loss'.
BASELINE = 'unigram'
# Metrics whose names contain these words are shown first in the report.
FIRST = ('loss', 'accuracy', 'learning_rate', 'tokens_per_second')
NOT_METRICS = ('step', 'split')
LOG = logging.getLogger(__name__)

Line = Mapping[str, Any]  # one line of metrics.jsonl


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
    config = _read_config(workdir / CONFIG_FILE)
    sections = (
        _summary_tiles(lines, flatten(config).get('train.steps')),
        _html_section('Final metrics', _final_metrics_table(lines) + _no_evaluation_sentence(config)),
        _html_section('Curves', _charts_html(lines)),
        _html_section('Config', _config_tables(config)),
        _html_section('Environment', _html_table(read_environment(workdir).items())),
    )
    page = _PAGE.format(title=escape(workdir.resolve().name), style=_STYLE, body='\n'.join(filter(None, sections)))
    path = workdir / FILE_NAME
    write_atomically(path, page)
    return path


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


def _summary_tiles(lines: Sequence[Line], total_steps: Any) -> str:
    """Returns the HTML of the most important figures of a run: its step, its speed and its validation metric."""
    series, baselines = metric_series(lines), unigram_baselines(lines)
    planned = f'of {total_steps:,} steps' if is_whole_number(total_steps) else 'steps'
    tiles = [(planned, f'{max(line["step"] for line in lines):,}')]
    speeds = sorted(series.get('tokens_per_second', {}).get(TRAIN, ([], []))[1])
    if speeds:
        tiles.append(('tokens/s, median', f'{speeds[len(speeds) // 2]:,.0f}'))
    for name, splits in series.items():
        held_out = [split for split in splits if split != TRAIN]
        if held_out and name in baselines:
            value = splits[held_out[0]][1][-1]
            tiles.append((f'{_display_name(held_out[0])} {_display_name(name)}', _format_number(value)))
            tiles.append(
                (
                    f'than the unigram loss, {_format_number(baselines[name])}',
                    _change_from_baseline(value, baselines[name]),
                )
            )
            break  # Only the first metric is shown here, because the table below shows the others.
    cells = ''.join(f'<div><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in tiles)
    return f'<div class="tiles">{cells}</div>'


def _final_metrics_table(lines: Sequence[Line]) -> str:
    """Returns an HTML table with the last value of each metric per split, and with the unigram baselines if there are
    any.
    """
    series, baselines = metric_series(lines), unigram_baselines(lines)
    splits = list(dict.fromkeys(line['split'] for line in lines))
    last = {split: max(line['step'] for line in lines if line['split'] == split) for split in splits}
    heads = ['metric', *(f'{_display_name(split)}, step {last[split]:,}' for split in splits)]
    heads += ['unigram'] if baselines else []
    rows = []
    for name, lines_of_splits in series.items():
        if not _is_baseline(name):
            values = [lines_of_splits[split][1][-1] if split in lines_of_splits else None for split in splits]
            values += [baselines.get(name)] if baselines else []
            rows.append((_display_name(name), *map(_format_number, values)))
    return _html_table(rows, heads)


def _no_evaluation_sentence(config: Mapping[str, Any]) -> str:
    """Returns a sentence for the report if the run had no validation set; '' if it had one, or if the config does not
    say.
    """
    fields = flatten(config)
    share = fields.get('data.held_out', 1.0)
    is_evaluated = has_held_out(share if isinstance(share, (int, float)) else 1.0, fields.get('eval.split', 'held_out'))
    return '' if is_evaluated else '<p>No text was held out (data.held_out=0): the run was not evaluated.</p>'


def _charts_html(lines: Sequence[Line]) -> str:
    baselines = unigram_baselines(lines)
    figures = []
    for name, splits in metric_series(lines).items():
        is_constant = len({value for _, values in splits.values() for value in values}) == 1
        if not _is_baseline(name) and (not is_constant or name == 'learning_rate'):
            chart = line_chart(name, splits, baselines.get(name))
            figures.append(f'<figure><figcaption>{escape(_display_name(name))}</figcaption>{chart}</figure>')
    return f'<div class="charts">{"".join(figures)}</div>'


def _config_tables(config: Mapping[str, Any]) -> str:
    """Returns the HTML of the run's config, with one table per config group; fields outside of groups come first."""
    groups = {'': {name: value for name, value in config.items() if not isinstance(value, dict)}}
    groups |= {name: flatten(value) for name, value in config.items() if isinstance(value, dict)}
    tables = [
        f'<div><h3>{escape(group)}</h3>'
        f'{_html_table((name, _as_plain_text(value)) for name, value in fields.items())}</div>'
        for group, fields in groups.items()
        if fields
    ]
    return f'<div class="groups">{"".join(tables)}</div>' if tables else ''


def _read_config(path: Path) -> dict[str, Any]:
    try:
        found = read_json_file(path) if path.exists() else {}
    except ValueError as error:
        raise InputError(f'{path} is not JSON: {error}') from None
    if not isinstance(found, dict):
        raise InputError(f'{path}: no JSON object')
    return found


def _html_section(title: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2>{content}</section>' if content else ''


def _html_table(rows: Any, heads: Sequence[str] = ()) -> str:
    head = ''.join(f'<th>{escape(text)}</th>' for text in heads)
    body = ''.join('<tr>' + ''.join(f'<td>{escape(str(cell))}</td>' for cell in row) + '</tr>' for row in rows)
    if not body:
        return ''
    return f'<table>{f"<thead><tr>{head}</tr></thead>" if head else ""}<tbody>{body}</tbody></table>'


def _display_name(name: str) -> str:
    return {'held_out': 'held-out'}.get(name, name.replace('_', ' '))


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


_STYLE = """
  :root { color: #0f172a; background: #f8fafc; font: 15px/1.5 system-ui, 'Segoe UI', 'Helvetica Neue', Arial,
  sans-serif; } body { max-width: 1040px; margin: 0 auto; padding: 32px 24px 64px; }
  h1 { font-size: 26px; margin: 0 0 20px; letter-spacing: -0.01em; }
  h2 { font-size: 17px; margin: 36px 0 12px; }
  h3 { font-size: 13px; margin: 0 0 6px; color: #2563eb; }
  .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px; }
  .tiles > div, figure, .groups > div, section > table { background: #fff; border: 1px solid #e2e8f0; border-radius:
  10px; } .tiles > div { padding: 14px 18px; }
  .tiles b { display: block; font-size: 22px; line-height: 1.3; font-variant-numeric: tabular-nums; }
  .tiles span { color: #64748b; font-size: 13px; }
  .charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 16px; }
  figure { margin: 0; padding: 14px 16px 8px; min-width: 0; }
  figcaption { font-weight: 600; font-size: 14px; margin-bottom: 6px; }
  svg { display: block; width: 100%; height: auto; }
  .groups { columns: 2; column-gap: 16px; }
  .groups > div { break-inside: avoid; padding: 14px 16px 8px; margin-bottom: 16px; }
  table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
  section > table { border-collapse: separate; border-spacing: 0; padding: 4px 16px; }
  th { text-align: left; color: #64748b; font-weight: 500; }
  th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid #f1f5f9; vertical-align: top; overflow-wrap: anywhere; }
  tr:last-child td { border-bottom: 0; }
  td:not(:first-child) { font-variant-numeric: tabular-nums; }
  .groups td { padding: 3px 12px 3px 0; }
  td:first-child { color: #475569; width: 45%; }
  thead + tbody td:first-child { color: inherit; width: auto; }
  @media (max-width: 700px) { .charts { grid-template-columns: 1fr; } .groups { columns: 1; } }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def main() -> None:
    """Writes the report of the workdir that the command line names, and prints the report's path; raises the same
    errors as `write_report`.
    """
    (workdir,) = parse_flags(sys.argv, options=flags.FlagValues(), words='WORKDIR')
    print(write_report(Path(workdir)))


if __name__ == '__main__':
    run_command(main)
