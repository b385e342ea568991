"""Writes the result pages `docs/results/<subject>.md` from the measurements in `docs/results/<subject>.json`.

    python scripts/make_results.py

A subject's JSON has a `title`, a sentence `about` it, the `guide` that it belongs to, and `sections`. Each section has:
    title     the heading
    says      a paragraph or a list of paragraphs: what the measurement shows
    runs      [{"when": "2026-11-26, jax 0.10.2, one core of an AMD EPYC", "commands": ["...", ...]}, ...]
    source    for published figures, which have no runs: authors, year, arXiv id and table
    tables    [{"caption": "...", "columns": [...], "rows": [[...], ...]}, ...]; instead of columns and rows,
              {"grid": "arena_recall.json", "rows": ["recall"], "speed": true} shows cells of `train_grid.py`, and
              {"measured": "gpu/attention.json"} a part of `measure_gpu.py` with its device, date and command
    pictures  [{"file": "docs/images/arena.svg", "shows": "..."}, ...]

`caption`, `tables` and `pictures` may be left out, and in a section with measured parts also `runs`. Benchmarks write
their JSON into `docs/results/data/`.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError
from efficient_attention.experiments.grid_report import grid_table
from scripts.benchmarks.measured_tables import measured_markdown

RESULTS = Path(__file__).resolve().parents[1] / 'docs' / 'results'
SECTION_FIELDS = {'title', 'says', 'runs', 'source', 'tables', 'pictures'}
PAGE_FIELDS = {'title', 'about', 'guide', 'sections'}


def main() -> None:
    """Writes every result page, and prints the name of each page."""
    parse_flags(sys.argv)
    for source in sorted(RESULTS.glob('*.json')):
        page = source.with_suffix('.md')
        write_atomically(page, format_page(source))
        print(page.relative_to(RESULTS.parents[1]))


def format_page(source: Path) -> str:
    """Returns the Markdown text of a result page, made from the subject's JSON file.

    Raises:
        InputError: a field is unknown or missing, a section has neither runs nor a source nor measured
            parts, or has two of them, or a table row
            does not fit its columns.
    """
    page = read_json_file(source)
    check_fields(source.name, page, PAGE_FIELDS, PAGE_FIELDS)
    parts = [
        f'# {page["title"]}',
        f'<!-- Written by scripts/make_results.py from {source.name}: change that file. -->',
        f'{page["about"]} The guide to this subject is [{page["guide"]}](../{page["guide"]}).',
    ]
    for section in page['sections']:
        parts += section_markdown(f'{source.name}: section {section.get("title", "without title")!r}', section)
    return '\n\n'.join(parts) + '\n'


def section_markdown(where: str, section: Mapping[str, Any]) -> Iterator[str]:
    """Yields the Markdown paragraphs, tables and code blocks of one section of a result page."""
    check_fields(where, section, SECTION_FIELDS, {'title'})
    is_measured = any('measured' in table for table in section.get('tables', []))
    if is_measured + ('runs' in section) + ('source' in section) != 1:
        raise InputError(f'{where} needs either runs (measured here) or source (published figures)')
    yield f'## {section["title"]}'
    says = section.get('says', [])
    yield from [says] if isinstance(says, str) else says
    for table in section.get('tables', []):
        if 'caption' in table:
            yield table['caption']
        yield format_table(where, table)
    for picture in section.get('pictures', []):
        yield f'![{picture["shows"]}](../{picture["file"].removeprefix("docs/")})'
    if 'source' in section:
        yield f'Source: {section["source"]}'
    for run in section.get('runs', []):
        yield '\n'.join(['```bash', f'# {run["when"]}', *run['commands'], '```'])


def format_table(where: str, table: Mapping[str, Any]) -> str:
    """Returns a Markdown table of a result page, from the given rows, from runs of `train_grid.py`, or from a part of
    `measure_gpu.py`.
    """
    if 'measured' in table:
        return measured_markdown(RESULTS / 'data' / table['measured'])
    if 'grid' in table:
        grid = read_json_file(RESULTS / 'data' / table['grid'])
        cells = {row: grid['cells'][row] for row in table['rows']}
        text = grid_table(cells, grid['yardsticks'], with_speed=table.get('speed', True))
        # The headings of the table become plain lines, because a heading would start a new section of the page.
        return re.sub('^### (.*)$', r'`\1`:', text, flags=re.MULTILINE).strip()
    columns = table['columns']
    for row in table['rows']:
        if len(row) != len(columns):
            raise InputError(f'{where} has a row of {len(row)} entries under {len(columns)} columns: {row}')
    rows = [columns, ['---'] * len(columns), *table['rows']]
    return '\n'.join(f'| {" | ".join(str(entry).replace("|", chr(92) + "|") for entry in row)} |' for row in rows)


def check_fields(where: str, found: Mapping[str, Any], known: set[str], needed: set[str]) -> None:
    """Raises InputError if a result page or section has an unknown field, or lacks a required field."""
    for name in sorted(found.keys() - known):
        raise InputError(f'{where} has the unknown field {name!r}; known: {", ".join(sorted(known))}')
    for name in sorted(needed - found.keys()):
        raise InputError(f'{where} lacks the field {name!r}')


if __name__ == '__main__':
    run_command(main)
