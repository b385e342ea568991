"""Formats a JSON file of `scripts/measure_gpu.py` as Markdown for a result page.

A file has the results of one part of the benchmark, such as `attention`. The Markdown contains the device, a table of
results and the command. It lists the cases without a result, and the cases in which a peer, another library, is faster.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, one_line

MIB = 2**20
COMMAND = '.venv/bin/python scripts/measure_gpu.py --minutes 9 --output runs/gpu --parts {part}'
LOST = 'This project loses to a peer in these cases, in which the ranges do not overlap:'
VERSIONS = ('driver', 'jax', 'jaxlib', 'flax', 'nvidia-cudnn-cu13', 'nvidia-cudnn-cu12', 'torch')
Results = Mapping[str, Mapping[str, Any]]  # name of a case -> its group, side, and figures or reason of failure

# title of a column -> the field that the column shows, and the format of its values
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    'ms': ('milliseconds', lambda value: f'{value:.4g}'),
    'range of ms': ('milliseconds_range', lambda value: '{:.4g} to {:.4g}'.format(*value)),
    'tokens/s': ('tokens_per_second', lambda value: f'{value:,.0f}'),
    'TFLOP/s': ('tflops_per_second', lambda value: f'{value:.4g}'),
    'share of the peak': ('peak_share', lambda value: f'{100 * value:.1f} %'),
    'temporary MiB': ('temporary_bytes', lambda value: f'{value / MIB:,.0f}'),
    'peak MiB': ('peak_bytes', lambda value: f'{value / MIB:,.0f}'),
    'cache MiB': ('cache_bytes', lambda value: f'{value / MIB:,.0f}'),
    'error of the output': ('output_error', lambda value: f'{value:.2g}'),
    'its range': ('output_error_range', lambda value: '{:.2g} to {:.2g}'.format(*value)),
    'error of the gradients': ('gradient_error', lambda value: f'{value:.2g}'),
    'their range': ('gradient_error_range', lambda value: '{:.2g} to {:.2g}'.format(*value)),
}


def measured_markdown(path: Path) -> str:
    """Returns the Markdown of a JSON file; if there is no file, says that this part is not yet measured.

    Raises:
        InputError: the file comes from a dry run, or is no report of `scripts/measure_gpu.py`.
    """
    if not path.exists():
        command = COMMAND.format(part=path.stem)
        return f'Not yet measured. On a machine with a GPU, run:\n\n```bash\n{command}\n```'
    try:
        report = read_json_file(path)
        if report['is_dry_run']:
            raise InputError(f'{path}: a dry run, with tiny sizes; it has no place on a page')
        return '\n\n'.join(paragraphs(report))
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InputError(f'{path}: not a report of scripts/measure_gpu.py ({one_line(error)})') from None


def paragraphs(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the Markdown paragraphs of a report."""
    machine, results = report['machine'], report['cases']
    versions = ', '.join(f'{name} {machine[name]}' for name in VERSIONS if name in machine)
    yield f'Device: {machine["count"]} {machine["device"]}, {versions}. Commit: {report["commit"]}.'
    yield table_of(results)
    if wrong := [f'`{name}`' for name, result in results.items() if result.get('is_wrong')]:
        yield f'Wrong results, whose errors are more than rounding: {", ".join(wrong)}.'
    if failed := list(failed_cases(results)):
        yield 'Cases without a result:'
        yield '\n'.join(failed)
    if any(result['is_peer'] for result in results.values()):
        lost = list(lost_groups(results))
        yield LOST if lost else 'This project loses to no peer.'
        yield from ['\n'.join(lost)] if lost else []
    when = f'# {report["date"]}, {machine["device"]}, jax {machine["jax"]}, commit {report["commit"]}'
    yield f'```bash\n{when}\n{COMMAND.format(part=report["part"])}\n```'


def table_of(results: Results) -> str:
    """Returns a Markdown table of all cases with a result; it has no column that would be empty in all lines."""
    measured = [result for result in results.values() if 'reason' not in result]
    columns = [title for title, (field, _) in COLUMNS.items() if any(field in result for result in measured)]
    rows = [['case', 'side', *columns], ['---'] * (2 + len(columns))]
    for result in measured:
        cells = [COLUMNS[title] for title in columns]
        shown = [form(result[field]) if field in result else '' for field, form in cells]
        rows.append([result['group'], f'{result["side"]}{" (peer)" if result["is_peer"] else ""}', *shown])
    return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def failed_cases(results: Results) -> Iterator[str]:
    """Yields a line for each reason of failure, with the names of the cases that failed for this reason."""
    reasons = dict.fromkeys(result['reason'] for result in results.values() if 'reason' in result)
    for reason in reasons:
        names = [f'`{name}`' for name, result in results.items() if result.get('reason') == reason]
        yield f'- {reason}: {", ".join(names)}'


def lost_groups(results: Results) -> Iterator[str]:
    """Yields a line for each group of cases in which the fastest peer beats this project's fastest side.

    Times whose ranges overlap count as equal.
    """
    groups = dict.fromkeys(result['group'] for result in results.values())
    for group in groups:
        timed = [one for one in results.values() if one['group'] == group and 'milliseconds' in one]
        ours, peers = ([one for one in timed if one['is_peer'] is is_peer] for is_peer in (False, True))
        peer = min(peers, key=lambda one: one['milliseconds'], default=None)
        best = min(ours, key=lambda one: one['milliseconds'], default=None)
        if peer is None:
            continue
        if best is None:
            yield f'- {group}: no side has a result; {peer["side"]} takes {peer["milliseconds"]:.4g} ms'
        elif peer['milliseconds_range'][1] < best['milliseconds_range'][0]:
            times = f'{best["milliseconds"]:.4g} ms against {peer["milliseconds"]:.4g} ms'
            ratio = best['milliseconds'] / peer['milliseconds']
            yield f'- {group}: {best["side"]} against {peer["side"]}, {times}, {ratio:.2f} x the time'
