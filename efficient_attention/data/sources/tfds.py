"""Reads datasets of TensorFlow Datasets (TFDS) without TensorFlow."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.sources.json_files import json_type_name
from efficient_attention.data.sources.text_files import decode_utf8
from efficient_attention.errors import InputError

DATA_SET = re.compile(r'[A-Za-z]\w*(/[\w.+-]+)*(:[\d.*]+)?')


def parse_tfds_field(text: str) -> tuple[str, str, str]:
    """Splits '<name>[:<split>]#<field>' into name, split and field; raises InputError if name or field is missing."""
    name, _, field = text.partition('#')
    if not name or not field:
        raise InputError('name or field is missing; write tfds:<name>[:<split>]#<field>')
    # A number after a colon, such as ':1.0.0', is a version and part of the name.
    match = re.fullmatch(r'(?P<name>.*?)(?::(?P<split>[A-Za-z_].*))?', name)
    assert match
    return match['name'], match['split'] or 'train', field


def tfds_documents(name: str, split: str, field: str) -> Iterator[str]:
    """Yields the text in a field of every row of a TFDS dataset; the dataset must have been prepared as ArrayRecord.

    Args:
        name: the TFDS name, e.g. 'imdb_reviews' or 'wikipedia/20230601.en:1.0.0'.
        split: e.g. 'train' or 'train[:10%]'.
        field: a text feature.

    Raises:
        InputError: TFDS is not installed, has no such dataset or split, or the rows have no such text.
    """
    for index, text in enumerate(tfds_values(name, split, field)):
        if not isinstance(text, str | bytes):
            raise InputError(f'tfds:{name}: field {field!r} is {json_type_name(text)}, not a text')
        yield decode_utf8(text, f'tfds:{name}: row {index}') if isinstance(text, bytes) else text


def tfds_values(name: str, split: str, field: str) -> Iterator[Any]:
    """Yields the value of a field in every row of a TFDS dataset; for arguments and errors see `tfds_documents`."""
    rows = tfds_rows(name, split)
    for index in range(len(rows)):
        row = rows[index]
        if field not in row:
            raise InputError(f'tfds:{name}: no field {field!r}; known: {", ".join(row)}')
        yield row[field]


def tfds_rows(name: str, split: str) -> Sequence[dict]:
    """Returns the rows of a split of a TFDS dataset; raises InputError if the dataset is missing or would run foreign
    code."""
    check_tfds_runs_no_code(name)
    try:
        import tensorflow_datasets as tfds  # This package is optional, and slow to import.
    except ImportError as error:
        raise InputError(f'tfds:{name} needs the package tensorflow_datasets ({error})') from None
    try:
        return tfds.data_source(name, split=split)
    except Exception as error:  # TFDS passes on any exception that a dataset builder raises.
        raise InputError(f'tfds:{name}: {type(error).__name__}: {one_line(error)[:300]}') from None


def check_tfds_runs_no_code(name: str) -> None:
    """Raises InputError if opening a TFDS dataset would import Python modules that its name or its files name.

    TFDS takes 'space:name' for a community's code, and imports the class that features.json gives for a feature.
    """
    if not DATA_SET.fullmatch(name):
        raise InputError(
            f'tfds:{name}: not the name of a data set, such as imdb_reviews or wikipedia/20230601.en:1.0.0'
        )
    root = Path(os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets').expanduser()
    for path in sorted((root / re.split('[/:]', name)[0]).rglob('features.json')):
        try:
            features = read_json_file(path)
        except (OSError, ValueError) as error:
            raise InputError(f'{path}: cannot be read ({one_line(error)})') from None
        for feature in feature_class_names(features):
            if not feature.startswith('tensorflow_datasets.'):
                raise InputError(f'{path}: {feature!r} is no feature of TensorFlow Datasets')


def feature_class_names(features: Any) -> Iterator[str]:
    """Yields the names of the Python classes in a features.json, which old and new TFDS releases write differently."""
    pairs = (
        features.items() if isinstance(features, dict) else enumerate(features if isinstance(features, list) else ())
    )
    for name, value in pairs:
        if not isinstance(value, str):
            yield from feature_class_names(value)
        elif name in ('pythonClassName', 'python_class_name') or (name == 'type' and '.' in value):
            yield value


def digest_texts(texts: Iterator[str] | Iterator[bytes]) -> str:
    """Returns a SHA-256 over texts, or over the bytes of images; it depends on the order of the texts or images."""
    total = hashlib.sha256()
    for text in texts:
        content = text.encode('utf-8', 'surrogatepass') if isinstance(text, str) else text
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()
