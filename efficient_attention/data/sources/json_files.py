"""Reads JSON files and JSON lines; each error message names the file, the line or position, and the field."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.config.json_parsing import parse_json
from efficient_attention.data.sources.text_files import read_lines, read_text
from efficient_attention.errors import KINDS_IN_WORDS, InputError

NAMES = KINDS_IN_WORDS | {dict: 'an object'}
SURROGATE = re.compile('[\ud800-\udfff]')
_REQUIRED: Any = object()


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file, plain or packed (.gz, .bz2); raises an InputError that names file and
    position."""
    return _parse_json_text(read_text(path), str(path))


def read_json_lines(path: Path) -> Iterator[tuple[Any, str]]:
    """Yields each line of a JSON-lines file, plain or packed (.gz, .bz2), as (value, 'file: line 3'); skips blank
    lines."""
    for number, line in read_lines(path):
        if line.strip():
            where = f'{path}: line {number}'
            yield _parse_json_text(line, where), where


def json_documents(files: Sequence[Path], field: str) -> Iterator[str]:
    """Yields the text in a field of every row of JSON-lines files; skips blank lines.

    Raises:
        InputError: a row is not a JSON object with a text in `field`; the message names file and line.
    """
    for path in files:
        for row, where in read_json_lines(path):
            yield typed_json_field(row, field, str, where)


def typed_json_field(row: Any, name: str, kind: type, where: str, *, default: Any = _REQUIRED) -> Any:
    """Returns the value of a field of a JSON object, after it has checked the value's type.

    Args:
        row: the object.
        name: the field.
        kind: str, int, bool, list or dict.
        where: file and place, for messages.
        default: result for a missing field; without a default the field is required.

    Raises:
        InputError: `row` is no object, has no such field, or a value of another kind; names place and field.
    """
    if not isinstance(row, dict):
        raise InputError(f'{where}: not a JSON object')
    if name not in row:
        if default is not _REQUIRED:
            return default
        raise InputError(f'{where}: no field {name!r}; known: {", ".join(map(str, row))}')
    return check_json_type(row[name], kind, f'{where}: field {name!r}')


def check_json_type(value: Any, kind: type, where: str) -> Any:
    """Returns the value unchanged; raises InputError if it is not of type `kind`."""
    is_right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not is_right:
        raise InputError(f'{where} is {json_type_name(value)}, not {NAMES[kind]}')
    if kind is str and SURROGATE.search(value):
        raise InputError(f'{where} holds half of a surrogate pair, which is no character')
    return value


def json_type_name(value: Any) -> str:
    """Returns the type of a JSON or TFDS value in words, for error messages: 'a list', 'null', 'a decimal number'."""
    if value is None or isinstance(value, bool):
        return {None: 'null', True: 'true', False: 'false'}[value]
    if isinstance(value, float):
        return 'a decimal number' if math.isfinite(value) else nonfinite_json_text(value)
    return next((name for kind, name in NAMES.items() if isinstance(value, kind)), type(value).__name__)


def nonfinite_json_text(value: float) -> str:
    """Returns NaN, Infinity or -Infinity, as JSON files write a float that is not finite."""
    return json.dumps(value)


def check_unique_ids(pairs: Iterable[tuple[str, str]]) -> None:
    """Raises InputError if two (id, location) pairs have the same id, because predictions would be ambiguous."""
    places: dict[str, str] = {}
    for id, place in pairs:
        if id in places:
            raise InputError(f"{place}: field 'id' is the same as in {places[id]}")
        places[id] = place


def _parse_json_text(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f'{where}: not JSON ({error})') from None
