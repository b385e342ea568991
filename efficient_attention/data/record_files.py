"""Documents that are rows of a data set: JSON lines, ArrayRecord files, TFDS data sets."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from array_record.python import array_record_module

from efficient_attention.data.cache_manifest import one_line
from efficient_attention.data.text_files import decode, read_lines
from efficient_attention.errors import InputError

RECORDS_AT_ONCE = 256
SURROGATE = re.compile('[\ud800-\udfff]')


def json_documents(files: Sequence[Path], field: str) -> Iterator[str]:
    """The text in `field` of every row of JSON-lines files; blank lines are skipped.

    Raises:
        InputError: a row is not a JSON object with a text in `field`; names file and line.
    """
    for path in files:
        for number, line in read_lines(path):
            if line.strip():
                yield _field_of(line, field, f'{path}: line {number}')


def _field_of(line: str, field: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f'{where}: not JSON ({error})') from None
    if not isinstance(row, dict):
        raise InputError(f'{where}: not a JSON object')
    if field not in row:
        raise InputError(f'{where}: no field {field!r}; known: {", ".join(map(str, row))}')
    if not isinstance(row[field], str):
        raise InputError(f'{where}: field {field!r} is {type(row[field]).__name__}, not text')
    if SURROGATE.search(row[field]):
        raise InputError(f'{where}: field {field!r} holds half of a surrogate pair, which is no character')
    return row[field]


def record_documents(files: Sequence[Path]) -> Iterator[str]:
    """The records of ArrayRecord files, each the UTF-8 bytes of one document.

    Raises:
        InputError: a file is not ArrayRecord or damaged, or a record is not UTF-8; names file and record.
    """
    for path in files:
        for number, record in enumerate(_records(path)):
            yield decode(record, f'{path}: record {number}')


def _records(path: Path) -> Iterator[bytes]:
    try:
        reader = array_record_module.ArrayRecordReader(str(path))
        count = reader.num_records()
        for start in range(0, count, RECORDS_AT_ONCE):
            yield from reader.read(start, min(start + RECORDS_AT_ONCE, count))
        reader.close()
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'{path}: not a sound ArrayRecord file ({one_line(error)})') from None


def tfds_documents(name: str, split: str, field: str) -> Iterator[str]:
    """The text in `field` of every row of a TFDS data set that was prepared as ArrayRecord, read without TensorFlow.

    Args:
        name: as TFDS knows it, e.g. 'imdb_reviews' or 'wikipedia/20230601.en:1.0.0'.
        split: e.g. 'train' or 'train[:10%]'.
        field: a text feature.

    Raises:
        InputError: TFDS is not installed, has no such data set or split, or the rows have no such text.
    """
    for index, text in enumerate(tfds_values(name, split, field)):
        if not isinstance(text, str | bytes):
            raise InputError(f'tfds:{name}: field {field!r} is {type(text).__name__}, not text')
        yield decode(text, f'tfds:{name}: row {index}') if isinstance(text, bytes) else text


def tfds_values(name: str, split: str, field: str) -> Iterator[Any]:
    """What `field` of every row of a TFDS data set holds; arguments and errors as for `tfds_documents`."""
    rows = tfds_rows(name, split)
    for index in range(len(rows)):
        row = rows[index]
        if field not in row:
            raise InputError(f'tfds:{name}: no field {field!r}; known: {", ".join(row)}')
        yield row[field]


def tfds_rows(name: str, split: str) -> Sequence[dict]:
    try:
        import tensorflow_datasets as tfds  # optional, and slow to import
    except ImportError as error:
        raise InputError(f'tfds:{name} needs the package tensorflow_datasets ({error})') from None
    try:
        return tfds.data_source(name, split=split)
    except Exception as error:  # TFDS raises whatever its builders raise
        raise InputError(f'tfds:{name}: {type(error).__name__}: {one_line(error)[:300]}') from None


def digest_texts(texts: Iterator[str] | Iterator[bytes]) -> str:
    """SHA-256 over the texts, or the bytes of images, and their order."""
    total = hashlib.sha256()
    for text in texts:
        content = text.encode('utf-8', 'surrogatepass') if isinstance(text, str) else text
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()
