"""Writes metrics as tables to the folder `csv/` of a workdir, with one file per split, such as `csv/train.csv`."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.workdir.trackers.tracker import End, TrackedRun, split_of

FOLDER = 'csv'
STEP = 'step'  # name of the first column


class CsvTracker:
    """Appends one row per step to the table of a split. Rows after the restored checkpoint are removed at the start.

    A metric that was not in earlier rows becomes a new column, which is empty there.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._folder, self._start_step = run.workdir / FOLDER, run.start_step
        self._columns: dict[str, list[str]] = {}  # split -> names of the columns

    def start(self) -> str:
        """Removes rows that the resumed run writes again."""
        for path in sorted(self._folder.glob('*.csv')):
            columns, rows = read_table(path)
            kept = [row for row in rows if _step(row) <= self._start_step]
            write_atomically(path, _table_text(columns, kept, has_header=True))
            self._columns[path.stem] = columns
        return ''

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one row, and flushes it to the file."""
        split = split_of(metrics)
        path, row = self._folder / f'{split}.csv', {name.partition('/')[2]: value for name, value in metrics.items()}
        known = self._columns.get(split, [STEP])
        columns = [*known, *(name for name in row if name not in known)]
        if columns == known:
            with path.open('a', encoding='utf-8', newline='') as file:
                file.write(_table_text(columns, [{STEP: step, **row}], has_header=False))
            return
        earlier = read_table(path)[1] if split in self._columns else []
        write_atomically(path, _table_text(columns, [*earlier, {STEP: step, **row}], has_header=True))
        self._columns[split] = columns

    def finish(self, end: End) -> None:
        """Does nothing, because each row is already in its file."""


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the column names of a table and its complete rows, as {column: text}."""
    whole, _, _unfinished = path.read_text(encoding='utf-8').rpartition('\n')
    reader = csv.DictReader(io.StringIO(whole))
    return [*(reader.fieldnames or [STEP])], [*reader]


def _step(row: Mapping[str, str]) -> float:
    text = row.get(STEP) or ''
    return int(text) if text.isdecimal() else math.inf


def _table_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, has_header: bool) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator='\n', extrasaction='ignore')
    if has_header:
        writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
