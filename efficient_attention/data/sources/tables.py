"""Reads rows with named columns from files of several formats, folders of text files, and TFDS datasets.

The formats are CSV, TSV, JSON lines, a JSON list of objects (each plain or .gz), Parquet and Arrow. A folder that
`save_to_disk` of Hugging Face's `datasets` wrote is read as its Arrow files. CSV fields in double quotes may contain
commas and line ends. In TSV a quote is an ordinary character, because GLUE's files contain unpaired quotes. A *.txt
file is one row: 'text' is its content, 'label' the name of its folder, and 'id' its own name, as in IMDB. Errors name
the file, the line as an editor counts it, and the column.
"""

import csv
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.data.sources.arrow_files import ARROW_SUFFIXES, find_table_files, open_arrow_table
from efficient_attention.data.sources.json_files import (
    SURROGATE,
    json_type_name,
    nonfinite_json_text,
    read_json,
    read_json_lines,
)
from efficient_attention.data.sources.text_files import decode_utf8, digest_files, read_lines, read_text
from efficient_attention.data.sources.tfds import tfds_rows
from efficient_attention.errors import InputError

SUFFIXES = ('.csv', '.tsv', '.jsonl', '.json', '.txt', *ARROW_SUFFIXES)
TFDS = 'tfds:'
# A number after a colon, such as ':1.0.0', is a version and part of the name.
TFDS_SPLIT = re.compile('tfds:(?P<name>.+?):(?P<split>[A-Za-z_].*)')
# maximum number of characters of a field; the csv module's default of 131,072 is too small for a book
LARGEST_FIELD = 2**31 - 1

CSV_FAULTS = {  # message of Python's csv module -> message for users
    'unexpected end of data': 'a double quote opens a field and none closes it',
    "expected after '\"'": 'text stands behind a closing double quote',
}

Fields = Iterator[tuple[int, list[str]]]  # line number from 1, fields of the line


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of a table, with its location in the file.

    Attributes:
        file: path of the file, or 'tfds:name:split'.
        place: 'line 3' of a file (the header is line 1), 'row 0' of a TFDS dataset or of a Parquet or Arrow file.
        values: column -> text; JSON lines, Parquet, Arrow and TFDS have other values, too.
        class_names: column of integer labels in TFDS, Parquet or Arrow, or of lists of such labels -> class names.
        header: number of the line with the column names; 0 = there is none.
    """

    file: str
    place: str
    values: Mapping[str, Any]
    class_names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    header: int = 0

    @property
    def file_and_line(self) -> str:
        """Returns the row's file and line, for error messages."""
        return f'{self.file}: {self.place}'

    def column_value(self, column: str, *, field: str = '') -> Any:
        """Returns the value in a column; if there is no such column, raises an InputError that lists the known
        columns.

        `field` is the config field that names the column, for the message; '' = none.
        """
        if column not in self.values:
            where = f'{self.file}: line {self.header}' if self.header else self.file_and_line
            advice = f'; set {field} to one of them' if field else ''
            raise InputError(f'{where}: no column {column!r}; known: {", ".join(map(repr, self.values))}{advice}')
        return self.values[column]

    def column_text(self, column: str, *, may_be_empty: bool = False, field: str = '') -> str:
        """Returns the text in a column; `field` is as in `column_value`.

        Raises:
            InputError: no such column, no text in it, or nothing but spaces.
        """
        value = self.column_value(column, field=field)
        if isinstance(value, bytes):  # Parquet files may have text in a column of bytes.
            value = decode_utf8(value, f'{self.file_and_line}: field {column!r}', offset=1)
        if not isinstance(value, str):
            raise InputError(f'{self.file_and_line}: field {column!r} is {json_type_name(value)}, not a text')
        if SURROGATE.search(value):
            raise InputError(
                f'{self.file_and_line}: field {column!r} holds half of a surrogate pair, which is no character'
            )
        if not may_be_empty and not value.strip():
            raise InputError(f'{self.file_and_line}: field {column!r} is empty')
        return value

    def class_name(self, column: str, number: int) -> str | None:
        """Returns the class name of an integer label in a column; None for -1, which means a hidden label.

        Raises:
            InputError: the column has no class with this number.
        """
        names = self.class_names[column]
        if number >= len(names):
            found = f'has class number {number}, but there are only {len(names)} classes'
            raise InputError(f'{self.file_and_line}: field {column!r} {found}')
        return names[number] if number >= 0 else None

    def column_label(self, column: str, *, field: str = '') -> str | None:
        """Returns the label in a column without surrounding spaces; None if the field is empty.

        `field` is as in `column_value`.
        A number of JSON or TFDS becomes the text of its value: 1, 1.0 and 1e0 are all '1'. A text is not changed.

        Raises:
            InputError: there is no such column, or its value is NaN, infinite, a list, an object or an unknown class.
        """
        value = self.column_value(column, field=field)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int) and column in self.class_names:
            return self.class_name(column, value)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InputError(
                    f'{self.file_and_line}: field {column!r} is {nonfinite_json_text(value)}, not a '
                    'text or a finite number'
                )
            return str(int(value) if value.is_integer() else value)
        if value is None or isinstance(value, str | int):
            return (str(value).strip() or None) if value is not None else None
        raise InputError(f'{self.file_and_line}: field {column!r} is {json_type_name(value)}, not a text or a number')


def expand_table_names(sources: str) -> list[str]:
    """Expands comma-separated globs, and folders that `save_to_disk` wrote, to their files without repeats.

    Names of TFDS splits stay unchanged.

    Raises:
        InputError: a glob matches no file, or a TFDS dataset has no split.
    """
    names: list[str] = []
    for source in filter(None, (part.strip() for part in sources.split(','))):
        if not source.startswith(TFDS):
            names += map(str, find_table_files(source))
        else:
            parse_tfds_split(source)  # This call raises an error if the name has no split.
            names.append(source)
    return list(dict.fromkeys(names))


def digest_tables(names: Sequence[str]) -> str:
    """Returns a text that identifies the content of tables: a hash of all files, then the names of TFDS splits.

    Args:
        names: names that `expand_table_names` returned.
    """
    files = sorted(Path(name) for name in names if not name.startswith(TFDS))
    splits = [name for name in names if name.startswith(TFDS)]
    return ' '.join([digest_files(files) if files else '', *splits])


def read_table(name: str, *, columns: Sequence[str] = (), faults: list[str] | None = None) -> Iterator[TableRow]:
    """Returns the rows of one file or TFDS split, in order; skips blank lines.

    Args:
        name: a name that `expand_table_names` returned.
        columns: column names of a CSV or TSV file without header; () = its first line has the names.
        faults: collects messages on rows with too many or too few fields, and skips these rows; None = such a row is
            an error.

    Raises:
        InputError: an unknown kind of file, an empty file, a header with a column twice, a row with more or fewer
            fields than the header, unclosed quotes or JSON.
    """
    if name.startswith(TFDS):
        return _tfds_table(name)
    path = Path(name)
    if path.suffix in ARROW_SUFFIXES:
        return _arrow_table(path)
    suffix = path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix
    if suffix in ('.jsonl', '.json'):
        return _json_table(path, read_json_lines(path) if suffix == '.jsonl' else _json_entries(path))
    if suffix == '.txt':
        values = {'text': read_text(path), 'label': path.parent.name, 'id': path.stem}
        return iter([TableRow(str(path), 'line 1', values)])
    if suffix in SUFFIXES:
        return _rows_with_column_names(
            path, _csv_fields(path) if suffix == '.csv' else _tsv_fields(path), columns, faults
        )
    raise InputError(
        f'{path}: not a known kind of table; known: {", ".join(SUFFIXES)}; all but Parquet and Arrow also with .gz'
    )


def read_tables(sources: str, *, columns: Sequence[str] = ()) -> Iterator[TableRow]:
    """Yields the rows of all sources in order; for arguments and errors see `expand_table_names` and `read_table`."""
    for name in expand_table_names(sources):
        yield from read_table(name, columns=columns)


def _rows_with_column_names(
    path: Path, lines: Fields, columns: Sequence[str], faults: list[str] | None
) -> Iterator[TableRow]:
    names, header = list(columns), 0
    for number, fields in lines:
        if not names:
            names, header = fields, number
            _check_header(path, number, names)
        elif len(fields) != len(names):
            count = f'{len(fields)} fields where there are {len(names)} columns: {", ".join(names)}'
            if faults is None:
                raise InputError(f'{path}: line {number}: {count}')
            faults.append(f'{path}: line {number}: {count}')
        else:
            values = dict(zip(names, fields, strict=True))
            yield TableRow(str(path), f'line {number}', values, header=header)
    if not names:
        raise InputError(f'{path}: it is empty; its first line must name the columns')


def _check_header(path: Path, number: int, names: list[str]) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f'{path}: line {number}: the header names column {repeated!r} twice')


def _tsv_fields(path: Path) -> Fields:
    return ((number, line.split('\t')) for number, line in read_lines(path) if line)


def _csv_fields(path: Path) -> Fields:
    csv.field_size_limit(LARGEST_FIELD)
    reader = csv.reader((f'{line}\n' for _, line in read_lines(path)), strict=True)
    while True:
        first = reader.line_num + 1  # The next row starts here; a quoted field may extend over several lines.
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = next((words for said, words in CSV_FAULTS.items() if said in str(error)), str(error))
            raise InputError(f'{path}: line {first}: not CSV ({fault})') from None
        if fields:
            yield first, fields


def _json_entries(path: Path) -> Iterator[tuple[Any, str]]:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise InputError(f'{path}: not a JSON list of objects; write one object per line in a file *.jsonl')
    for number, values in enumerate(entries, start=1):
        yield values, f'{path}: entry {number}'


def _json_table(path: Path, rows: Iterator[tuple[Any, str]]) -> Iterator[TableRow]:
    for values, where in rows:
        if not isinstance(values, dict):
            raise InputError(f'{where}: not a JSON object')
        yield TableRow(str(path), where.removeprefix(f'{path}: '), values)


def _arrow_table(path: Path) -> Iterator[TableRow]:
    table = open_arrow_table(path)
    for index, values in enumerate(table.rows()):
        yield TableRow(str(path), f'row {index}', values, table.class_names)


def _tfds_table(name: str) -> Iterator[TableRow]:
    rows = tfds_rows(*parse_tfds_split(name))
    named = rows.class_names()
    for index, row in enumerate(rows):
        place = f'row {index}'
        values = {column: _to_python_value(value, f'{name}: {place}') for column, value in row.items()}
        yield TableRow(name, place, values, named)


def parse_tfds_split(name: str) -> tuple[str, str]:
    """Splits 'tfds:<name>[/<config>]:<split>' into dataset and split; raises InputError if there is no split."""
    match = TFDS_SPLIT.fullmatch(name)
    if match is None:
        raise InputError(f'{name}: no split; write tfds:<name>[/<config>]:<split>, such as {name}:train')
    return match['name'], match['split']


def _to_python_value(value: Any, where: str) -> Any:
    if isinstance(value, bytes):
        # TFDS texts have no byte order mark. An offset above 0 makes `decode_utf8` keep such a character.
        return decode_utf8(value, where, offset=1)
    if isinstance(value, list):
        return [_to_python_value(one, where) for one in value]
    return value.item() if hasattr(value, 'item') and getattr(value, 'ndim', 0) == 0 else value
