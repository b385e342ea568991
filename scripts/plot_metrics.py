"""Plots a metric of training runs: python scripts/plot_metrics.py masked_lm_loss loss.svg runs/a [runs/b ...]."""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import sys
from pathlib import Path

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.errors import InputError
from efficient_attention.workdir.metrics import parse_metrics_log, unreadable_lines_note
from efficient_attention.workdir.report import metric_series, unigram_baselines
from efficient_attention.workdir.report_charts import Series, line_chart


def main() -> None:
    """Reads the flags, and writes the plot of a metric over training steps: a line per split of each run.

    For a single run, the plot also shows the unigram model's value, if it was measured.
    """
    options = flags.FlagValues()
    flags.DEFINE_string('split', None, 'Plot only this split, such as held_out.', flag_values=options)
    metric, picture, *runs = parse_flags(sys.argv, options=options, words='METRIC OUTPUT WORKDIR...')
    output, workdirs = Path(picture), list(map(Path, runs))
    if output.suffix != '.svg':
        raise InputError(f'{output}: the picture is an SVG; name a file that ends in .svg')
    lines, baseline = {}, None
    for workdir in workdirs:
        found, unigram = read_metric_series(workdir, metric, options.split)
        is_only = len(workdirs) == 1
        name = '{run}' if options.split and not is_only else '{split}' if is_only else '{run} {split}'
        lines |= {name.format(run=workdir.name, split=split): series for split, series in found.items()}
        baseline = unigram if is_only else None
    write_atomically(output, line_chart(metric, lines, baseline))
    print(output)


def read_metric_series(workdir: Path, metric: str, only: str | None = None) -> tuple[dict[str, Series], float | None]:
    """Reads a metric of a run; returns its steps and values per split, and the unigram baseline's last value.

    If `only` is given, other splits are left out. The baseline is None if it was not measured.
    """
    rows, dropped = parse_metrics_log(workdir)
    notes = unreadable_lines_note(workdir, dropped)
    if not rows:
        raise InputError(next(iter(notes), f'{workdir}: no metrics there (metrics.jsonl is missing or empty)'))
    for note in notes:
        print(note, file=sys.stderr)
    series = metric_series(rows)
    if metric not in series:
        raise InputError(f'{workdir}: no metric {metric!r}; known: {", ".join(sorted(series))}')
    lines = {split: line for split, line in series[metric].items() if only in (None, split)}
    if not lines:
        raise InputError(f'{workdir}: no split {only!r} of {metric}; known: {", ".join(series[metric])}')
    return lines, unigram_baselines(rows).get(metric)


if __name__ == '__main__':
    run_command(main)
