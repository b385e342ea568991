"""Rows with named columns: CSV, TSV and JSON lines, each plain or .gz, folders of texts, and TFDS data sets.

CSV fields may stand in double quotes and then hold commas and line ends; in TSV a quote is a character like any other
(GLUE's files hold single ones). A *.txt file is one row: 'text' is what it holds, 'label' the name of its folder and
'id' its own name, as IMDB is laid out. Every fault names the file, the line as an editor counts it, and the column.
"""

import csv
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.data.sources.json_files import SURROGATE, kind_of, read_json_lines, written
from efficient_attention.data.sources.text_files import decode, find_files, read_lines, read_text
from efficient_attention.data.sources.tfds import tfds_rows
from efficient_attention.errors import InputError

SUFFIXES = ('.csv', '.tsv', '.jsonl', '.txt')
TFDS = 'tfds:'
TFDS_SPLIT = re.compile('tfds:(?P<name>.+?):(?P<split>[A-Za-z_].*)')  # ':1.0.0' is a version, part of the name
LARGEST_FIELD = 2**31 - 1  # characters; the csv module stops at 131,072, which a book exceeds

CSV_FAULTS = {  # what Python's csv module says -> in plain words
    'unexpected end of data': 'a double quote opens a field and none closes it',
    "expected after '\"'": 'text stands behind a closing double quote',
}

Fields = Iterator[tuple[int, list[str]]]  # line from 1, fields


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of a table.

    Attributes:
        file: its path, or 'tfds:name:split'.
        place: 'line 3' of a file (the header is line 1), 'row 0' of a TFDS data set.
        values: column -> text; JSON lines and TFDS have other values too.
        class_names: of TFDS columns that hold numbers of named classes.
        header: the line that names the columns; 0 = no line does.
    """

    file: str
    place: str
    values: Mapping[str, Any]
    class_names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    header: int = 0

    @property
    def where(self) -> str:
        """File and place, for messages."""
        return f'{self.file}: {self.place}'

    def value(self, column: str) -> Any:
        """What stands in a column; raises InputError that lists the known ones where there is no such column."""
        if column not in self.values:
            where = f'{self.file}: line {self.header}' if self.header else self.where
            raise InputError(f'{where}: no column {column!r}; known: {", ".join(map(repr, self.values))}')
        return self.values[column]

    def text(self, column: str, *, may_be_empty: bool = False) -> str:
        """The text in a column.

        Raises:
            InputError: no such column, no text in it, or nothing but spaces.
        """
        value = self.value(column)
        if not isinstance(value, str):
            raise InputError(f'{self.where}: field {column!r} is {kind_of(value)}, not a text')
        if SURROGATE.search(value):
            raise InputError(f'{self.where}: field {column!r} holds half of a surrogate pair, which is no character')
        if not may_be_empty and not value.strip():
            raise InputError(f'{self.where}: field {column!r} is empty')
        return value

    def label(self, column: str) -> str | None:
        """The name in a column without spaces around; None where it holds nothing.

        A number of JSON or TFDS is the text of its value: 1, 1.0 and 1e0 are all '1'. A text stays as it stands.

        Raises:
            InputError: no such column, or what it holds is NaN, infinite, a list or an object.
        """
        value = self.value(column)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int) and column in self.class_names:
            return self.class_names[column][value] if value >= 0 else None  # TFDS writes -1 where labels are withheld
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InputError(f'{self.where}: field {column!r} is {written(value)}, not a text or a finite number')
            return str(int(value) if value.is_integer() else value)
        if value is None or isinstance(value, str | int):
            return (str(value).strip() or None) if value is not None else None
        raise InputError(f'{self.where}: field {column!r} is {kind_of(value)}, not a text or a number')


def source_names(sources: str) -> list[str]:
    """The files that comma-separated globs stand for, and the TFDS splits among them as they are, without repeats.

    Raises:
        InputError: a glob matches no file, or a TFDS data set comes without a split.
    """
    names: list[str] = []
    for source in filter(None, (part.strip() for part in sources.split(','))):
        if not source.startswith(TFDS):
            names += map(str, find_files(source))
        else:
            tfds_parts(source)  # raises where it has no split
            names.append(source)
    return list(dict.fromkeys(names))


def read_table(name: str, *, columns: Sequence[str] = (), faults: list[str] | None = None) -> Iterator[TableRow]:
    """The rows of one file or TFDS split, in order; blank lines are skipped.

    Args:
        name: one of `source_names`.
        columns: names for a CSV or TSV file that has no header; () = its first line names them.
        faults: collects what is wrong with rows of more or fewer fields than there are columns, which are then left
            out; None = such a row is an error.

    Raises:
        InputError: an unknown kind of file, an empty one, a header that names a column twice, a row with more or fewer
            fields than the header, quotes or JSON that do not close.
    """
    if name.startswith(TFDS):
        return _tfds_table(name)
    path = Path(name)
    suffix = path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix
    if suffix == '.jsonl':
        return _json_table(path)
    if suffix == '.txt':
        values = {'text': read_text(path), 'label': path.parent.name, 'id': path.stem}
        return iter([TableRow(str(path), 'line 1', values)])
    if suffix in SUFFIXES:
        return _named(path, _csv_fields(path) if suffix == '.csv' else _tsv_fields(path), columns, faults)
    raise InputError(f'{path}: not a known kind of table; known: {", ".join(SUFFIXES)}, each also with .gz')


def read_tables(sources: str, *, columns: Sequence[str] = ()) -> Iterator[TableRow]:
    """The rows of all `sources`, one after another; arguments and errors as `source_names` and `read_table`."""
    for name in source_names(sources):
        yield from read_table(name, columns=columns)


def _named(path: Path, lines: Fields, columns: Sequence[str], faults: list[str] | None) -> Iterator[TableRow]:
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
        first = reader.line_num + 1  # a quoted field may run over several lines
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = next((words for said, words in CSV_FAULTS.items() if said in str(error)), str(error))
            raise InputError(f'{path}: line {first}: not CSV ({fault})') from None
        if fields:
            yield first, fields


def _json_table(path: Path) -> Iterator[TableRow]:
    for values, where in read_json_lines(path):
        if not isinstance(values, dict):
            raise InputError(f'{where}: not a JSON object')
        yield TableRow(str(path), where.removeprefix(f'{path}: '), values)


def _tfds_table(name: str) -> Iterator[TableRow]:
    rows = tfds_rows(*tfds_parts(name))
    features = getattr(getattr(rows, 'dataset_info', None), 'features', None) or {}
    named = {column: feature.names for column, feature in features.items() if getattr(feature, 'num_classes', 0)}
    for index in range(len(rows)):
        place = f'row {index}'
        values = {column: _plain(value, f'{name}: {place}') for column, value in rows[index].items()}
        yield TableRow(name, place, values, named)


def tfds_parts(name: str) -> tuple[str, str]:
    """Data set and split of 'tfds:<name>[/<config>]:<split>'; raises InputError where there is no split."""
    match = TFDS_SPLIT.fullmatch(name)
    if match is None:
        raise InputError(f'{name}: no split; write tfds:<name>[/<config>]:<split>, such as {name}:train')
    return match['name'], match['split']


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, bytes):
        return decode(value, where, offset=1)  # offset 1: TFDS texts have no byte order mark to take away
    return value.item() if hasattr(value, 'item') and getattr(value, 'ndim', 0) == 0 else value
