"""Reads datasets of TensorFlow Datasets (TFDS) that were prepared before, without TensorFlow.

`make tfds NAME=<name>` prepares a dataset in the folder data/tfds. Nothing is ever downloaded here. TFDS itself decodes
the features of a row. Its TFRecord files are read by tfrecord.py, files of other formats (ArrayRecord) by TFDS.
"""

import bisect
import fnmatch
import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.sources.json_files import json_type_name, read_json, typed_json_field
from efficient_attention.data.sources.text_files import decode_utf8
from efficient_attention.errors import InputError, missing_extra_error

DATA_SET = re.compile(r'[A-Za-z]\w*(/[\w+-][\w.+-]*)*(:[\d.*]+)?')
PREPARED = Path('data/tfds')  # folder that `make tfds` fills
VERSION = re.compile(r'\d+\.\d+\.\d+')


def parse_tfds_field(text: str) -> tuple[str, str, str]:
    """Splits '<name>[:<split>][#<field>]' into name, split and field ('' = not given); raises InputError without a
    name."""
    name, hash_sign, field = text.partition('#')
    if not name or (hash_sign and not field):
        raise InputError('name or field is missing; write tfds:<name>[:<split>]#<field>')
    # A number after a colon, such as ':1.0.0', is a version and part of the name.
    match = re.fullmatch(r'(?P<name>.*?)(?::(?P<split>[A-Za-z_].*))?', name)
    assert match
    return match['name'], match['split'] or 'train', field


def tfds_documents(name: str, split: str, field: str) -> Iterator[str]:
    """Yields the text in a field of every row of a prepared TFDS dataset.

    Args:
        name: the TFDS name, e.g. 'imdb_reviews' or 'wikipedia/20230601.en:1.0.0'.
        split: e.g. 'train' or 'train[:10%]'.
        field: a text feature; '' = the feature 'text', or else the only text feature.

    Raises:
        InputError: TFDS is not installed, the dataset is not prepared or has no such split, or the rows have no such
            text.
    """
    for index, text in enumerate(tfds_values(name, split, field)):
        if not isinstance(text, str | bytes):
            raise InputError(f'tfds:{name}: field {field!r} is {json_type_name(text)}, not a text')
        yield decode_utf8(text, f'tfds:{name}: row {index}') if isinstance(text, bytes) else text


def tfds_values(name: str, split: str, field: str) -> Iterator[Any]:
    """Yields the value of a field in every row of a TFDS dataset; for arguments and errors see `tfds_documents`."""
    rows = tfds_rows(name, split)
    field = field or rows.text_field()
    if field not in rows.features:
        raise InputError(f'tfds:{name}: no field {field!r}; known: {", ".join(sorted(rows.features))}')
    for row in rows:
        yield row[field]


class TFDSRows:
    """The rows of a split of a TFDS dataset, each with the values of all features.

    Attributes:
        name: name of the dataset, for messages.
        features: TFDS features by name.
    """

    def __init__(self, name: str, features: Any, records: Any) -> None:
        """`records` has the rows, either decoded or as bytes."""
        self.name, self.features, self._records = name, features, records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns a row; raises InputError if it is damaged."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            record = self._records[index]
            return self.features.deserialize_example_np(record) if isinstance(record, bytes) else record
        except InputError:
            raise
        except Exception as error:  # ArrayRecord, protobuf and the features raise many kinds of exception.
            raise InputError(
                f'tfds:{self.name}: row {index} cannot be read ({type(error).__name__}: {one_line(error)[:300]})'
            ) from None

    def text_field(self) -> str:
        """Returns the feature 'text', or else the only text feature; raises InputError if there is no such feature."""
        texts = [name for name, feature in self.features.items() if type(feature).__name__ == 'Text']
        if 'text' in texts or len(texts) == 1:
            return 'text' if 'text' in texts else texts[0]
        raise InputError(
            f'tfds:{self.name}: the field is missing; write tfds:<name>[:<split>]#<field> with one of '
            f'{", ".join(sorted(self.features))}'
        )

    def class_names(self) -> dict[str, list[str]]:
        """Returns {feature: class names} for the features that are integer labels or lists of them."""
        inner = {name: getattr(feature, 'feature', feature) for name, feature in self.features.items()}
        return {name: feature.names for name, feature in inner.items() if getattr(feature, 'num_classes', 0)}


def tfds_rows(name: str, split: str) -> TFDSRows:
    """Returns the rows of a split of a prepared TFDS dataset.

    Raises:
        InputError: TFDS or the dataset is missing, the dataset cannot be read, or it would run foreign code.
    """
    folder = prepared_folder(name)
    check_tfds_runs_no_code(folder)
    try:
        import tensorflow_datasets as tfds  # This package is optional, and slow to import.
    except ImportError as error:
        raise missing_extra_error(f'tfds:{name}', 'tfds', error) from None
    try:
        builder = tfds.builder_from_directory(folder)
        if builder.info.file_format is tfds.core.FileFormat.TFRECORD:
            records: Any = _TFRecords(folder, builder.info.splits[split].file_instructions)
        else:
            records = builder.as_data_source(split)
        return TFDSRows(name, builder.info.features, records)
    except InputError:
        raise
    except Exception as error:  # TFDS raises many kinds of exception for a folder that is damaged.
        raise InputError(f'tfds:{name}: {type(error).__name__}: {one_line(error)[:300]}') from None


class _TFRecords:
    """The records of a split, which is stored in several TFRecord files or in parts of them."""

    def __init__(self, folder: Path, parts: Sequence[Any]) -> None:
        """`parts` are file instructions of TFDS: file name, first record, number of records; files are in `folder`."""
        # The environment of Apache Beam, which imports this file, has no CRC-32C.
        from efficient_attention.data.sources.tfrecord import TFRecordFile

        self._parts = parts
        self._files = [TFRecordFile(folder / Path(part.filename).name) for part in parts]
        self._ends = list(itertools.accumulate(part.take for part in parts))  # cumulative number of records

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, index)
        part, file = self._parts[number], self._files[number]
        if len(file) != part.examples_in_shard:
            raise InputError(
                f'{file.path}: {len(file)} records; dataset_info.json beside it says {part.examples_in_shard}'
            )
        return file[part.skip + index - (self._ends[number] - part.take)]


def prepared_folder(name: str) -> Path:
    """Returns the folder with the files of a prepared TFDS dataset, in its newest version.

    It is looked for in the folder that TFDS_DATA_DIR names (by default ~/tensorflow_datasets), and in data/tfds.

    Args:
        name: '<name>[/<config>][:<version>]'; the version may have wildcards, such as '1.*.*'.

    Raises:
        InputError: there is no such dataset, or it has several configs and `name` names none.
    """
    if not DATA_SET.fullmatch(name):
        raise InputError(
            f'tfds:{name}: not the name of a data set, such as imdb_reviews or wikipedia/20230601.en:1.0.0'
        )
    path, _, version = name.partition(':')
    roots = [Path(os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets').expanduser(), PREPARED]
    for root in roots:
        if folder := _newest_version(root / path, version):
            return folder
        configs = [config for config in sorted((root / path).glob('*/')) if _newest_version(config, version)]
        if len(configs) > 1:
            known = ', '.join(f'{path}/{config.name}' for config in configs)
            raise InputError(f'tfds:{name}: name one of its prepared configs: {known}')
        for config in configs:
            return _newest_version(config, version) or config
    raise InputError(
        f'tfds:{name}: not prepared in {roots[0]} or {PREPARED}; prepare it once with: make tfds NAME={name}'
    )


def tfds_splits(name: str) -> list[str]:
    """Returns the names of the splits of a prepared TFDS dataset; raises InputError if it is missing or damaged."""
    path = prepared_folder(name) / 'dataset_info.json'
    splits = typed_json_field(read_json(path), 'splits', list, str(path))
    return [typed_json_field(split, 'name', str, str(path)) for split in splits]


def _newest_version(folder: Path, version: str) -> Path | None:
    """Returns the subfolder with the highest version that matches `version` ('' = any); None if there is none."""
    found = [path.parent for path in folder.glob('*/features.json') if VERSION.fullmatch(path.parent.name)]
    found = [path for path in found if fnmatch.fnmatchcase(path.name, version or '*')]
    return max(found, key=lambda path: tuple(map(int, path.name.split('.'))), default=None)


def check_tfds_runs_no_code(folder: Path) -> None:
    """Raises InputError if opening a TFDS dataset would import Python modules that its files name.

    TFDS imports the class that features.json gives for a feature.
    """
    path = folder / 'features.json'
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
