"""Reads the rows of a file with training examples, all columns included, and writes changed rows in the same format."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.glue import glue_task, read_glue, with_columns_of_file
from efficient_attention.data.sources.tables import TFDS, TableRow, read_table
from efficient_attention.errors import InputError

FORMATS = ('.csv', '.tsv', '.jsonl')


@dataclasses.dataclass(frozen=True)
class TextTable:
    """A file with training examples, in which one or two columns are texts.

    Attributes:
        path: the file.
        config: its fields `format`, `name`, `text` and `text_pair` define the text columns.
    """

    path: Path
    config: ExamplesConfig

    def rows(self, faults: list[str]) -> Iterator[TableRow]:
        """Returns the rows of the file; broken rows in GLUE's official files are skipped and listed in `faults`.

        Raises:
            InputError: the file is missing, of another kind, or has an invalid row.
        """
        if str(self.path).startswith(TFDS) or self.suffix not in FORMATS:
            raise InputError(
                f'{self.path}: rows must come from a file of {", ".join(FORMATS)}, whose format the output has'
            )
        if self.config.format == 'glue':
            return read_glue(glue_task(self.config.name), str(self.path), 'train', faults)
        return read_table(str(self.path))

    @property
    def suffix(self) -> str:
        """Returns the file's suffix, such as '.tsv', without the suffix of a compressed file."""
        return Path(self.path.name.removesuffix('.gz')).suffix

    def columns(self, row: TableRow) -> tuple[str, ...]:
        """Returns the names of the columns with the row's text or texts."""
        if self.config.format == 'glue':
            return with_columns_of_file(glue_task(self.config.name), row).texts
        return tuple(column for column in (self.config.text, self.config.text_pair) if column)

    def has_header(self) -> bool:
        """Whether the first line of the file contains the column names."""
        if self.config.format != 'glue' or not glue_task(self.config.name).headless:
            return True
        return tuple(next(self.rows([])).values) != glue_task(self.config.name).headless


def format_table_lines(rows: Iterable[Mapping[str, Any]], suffix: str, *, has_header: bool) -> Iterator[str]:
    """Yields the lines of a CSV, TSV or JSON-lines file with these rows; each line ends with a line break."""
    columns: Sequence[str] | None = None
    for row in rows:
        if suffix == '.jsonl':
            yield json.dumps(row, ensure_ascii=False) + '\n'
            continue
        if columns is None:
            columns = list(row)
            if has_header:
                yield format_table_line(columns, suffix)
        yield format_table_line([str(row[column]) for column in columns], suffix)


def format_table_line(fields: Sequence[str], suffix: str) -> str:
    """Returns one line of a CSV or TSV file, line break included."""
    if suffix == '.tsv':
        return '\t'.join(fields) + '\n'
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerow(fields)
    return text.getvalue()
