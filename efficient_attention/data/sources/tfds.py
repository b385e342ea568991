"""TensorFlow Datasets, read without TensorFlow."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from efficient_attention.data.cache_manifest import one_line
from efficient_attention.data.sources.text_files import decode
from efficient_attention.errors import InputError


def tfds_field(text: str) -> tuple[str, str, str]:
    """Name, split and field in '<name>[:<split>]#<field>'; raises InputError where one is missing."""
    name, _, field = text.partition('#')
    if not name or not field:
        raise InputError('name or field is missing; write tfds:<name>[:<split>]#<field>')
    match = re.fullmatch(r'(?P<name>.*?)(?::(?P<split>[A-Za-z_].*))?', name)  # ':1.0.0' is a version, part of the name
    assert match
    return match['name'], match['split'] or 'train', field


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
