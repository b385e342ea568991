"""Reads rows of Parquet and Arrow files, and of folders that the package `datasets` of Hugging Face has saved.

`save_to_disk` writes one folder per split: Arrow files, and a state.json that lists them. A folder with several splits
has a dataset_dict.json, and one folder per split inside. The schema of a file has the class names of columns with
integer labels (ClassLabel).
"""

import dataclasses
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.config.json_parsing import parse_json
from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.sources.json_files import json_type_name, read_json, typed_json_field
from efficient_attention.data.sources.text_files import decode_utf8, find_files
from efficient_attention.errors import InputError

ROWS_AT_ONCE = 256
ARROW_SUFFIXES = ('.parquet', '.arrow')
STATE = 'state.json'
# fields of state.json for files that list the selected rows; only old versions of `datasets` wrote them
INDIRECT = ('_indices_files', '_indices_data_files')
Schema = Any


@dataclasses.dataclass(frozen=True)
class ArrowTable:
    """The rows of a Parquet or Arrow file.

    Attributes:
        path: the file.
        columns: column names.
        class_names: column of integer labels, or of lists of such labels -> class names.
    """

    path: Path
    columns: tuple[str, ...]
    class_names: Mapping[str, Sequence[str]]

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yields each row as column -> value, for some columns or all; raises InputError if the file is damaged."""
        import pyarrow  # This import is slow, and most runs do not need it.

        for batch in _file_parts(self.path, None if columns is None else list(columns)):
            try:
                batch.validate(full=True)  # Without this check, damaged offsets end the process.
                rows = (batch if columns is None else batch.select(list(columns))).to_pylist()
            except (pyarrow.ArrowException, ValueError) as error:  # a string that is not UTF-8 is a ValueError
                raise InputError(f'{self.path}: damaged ({one_line(error)[:300]})') from None
            yield from rows


def open_arrow_table(path: Path) -> ArrowTable:
    """Returns the table in a Parquet or Arrow file; raises InputError if it is neither, or damaged."""
    schema = next(_file_parts(path, [], schema_only=True))
    try:
        columns = tuple(schema.names)
    except ValueError as error:
        raise InputError(f'{path}: damaged column names ({one_line(error)})') from None
    return ArrowTable(path, columns, _class_names(schema, path))


def arrow_documents(files: Sequence[Path], field: str) -> Iterator[str]:
    """Yields the text in a column of every row of Parquet or Arrow files.

    Raises:
        InputError: a file is damaged or has no such column, or a row has no text in it; names file and row.
    """
    for path in files:
        table = open_arrow_table(path)
        if field not in table.columns:
            raise InputError(f'{path}: no column {field!r}; known: {", ".join(map(repr, table.columns))}')
        for number, row in enumerate(table.rows([field])):
            text, where = row[field], f'{path}: row {number}'
            if not isinstance(text, str | bytes):
                raise InputError(f'{where}: field {field!r} is {json_type_name(text)}, not a text')
            yield decode_utf8(text, where, offset=1) if isinstance(text, bytes) else text


def find_table_files(source: str) -> tuple[Path, ...]:
    """Returns the files that match a glob, or the Arrow files of a saved folder in their order.

    Raises:
        InputError: no file matches, or the folder has several splits.
    """
    folders = [Path(name) for name in sorted(glob.glob(os.path.expanduser(source))) if os.path.isdir(name)]
    saved = [folder for folder in folders if is_saved_dataset(folder)]
    return tuple(path for folder in saved for path in saved_files(folder)) if saved else find_files(source)


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` of the package `datasets` wrote this folder."""
    return any((folder / name).is_file() for name in (STATE, 'dataset_dict.json'))


def saved_files(folder: Path) -> list[Path]:
    """Returns the Arrow files of a folder that `save_to_disk` wrote for one split; raises InputError if there are
    none."""
    if not (folder / STATE).is_file():
        splits = typed_json_field(read_json(folder / 'dataset_dict.json'), 'splits', list, str(folder))
        known = ', '.join(str(folder / str(split)) for split in splits)
        raise InputError(f'{folder}: it has several splits; name the folder of one: {known}')
    where = str(folder / STATE)
    state = read_json(folder / STATE)
    if any(isinstance(state, dict) and state.get(name) for name in INDIRECT):
        raise InputError(
            f'{where}: saved by an old version of datasets, with an indices file; save it with a newer one'
        )
    names = [
        typed_json_field(entry, 'filename', str, where) for entry in typed_json_field(state, '_data_files', list, where)
    ]
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise InputError(f'{where}: there is no file {name!r} beside it')
    return [folder / name for name in names]


def _file_parts(path: Path, columns: list[str] | None, *, schema_only: bool = False) -> Iterator[Any]:
    """Yields the record batches of a file; with `schema_only`, yields only its schema.

    `columns` selects the columns to read from a Parquet file; None = all.
    """
    import pyarrow
    from pyarrow import parquet

    kind = 'Parquet' if path.suffix == '.parquet' else 'Arrow'
    try:
        with pyarrow.OSFile(str(path)) as file:
            start = file.read(6)
            file.seek(0)
            if kind == 'Parquet' or start[:4] == b'PAR1':
                kind = 'Parquet'
                found = parquet.ParquetFile(file, page_checksum_verification=True)
                yield from [found.schema_arrow] if schema_only else found.iter_batches(ROWS_AT_ONCE, columns=columns)
            elif start == b'ARROW1':
                reader = pyarrow.ipc.open_file(file)
                batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
                yield from [reader.schema] if schema_only else batches
            else:
                stream = pyarrow.ipc.open_stream(file)
                yield from [stream.schema] if schema_only else stream
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # a name that is not UTF-8 is a ValueError
        raise InputError(f'{path}: not a valid {kind} file, or damaged ({one_line(error)[:300]})') from None


def _class_label(feature: Any) -> dict[str, Any] | None:
    """Returns the ClassLabel feature of a column of integer labels, or of lists of them; None for other columns."""
    if isinstance(feature, list) and len(feature) == 1:
        return _class_label(feature[0])
    if isinstance(feature, dict) and feature.get('_type') in ('List', 'LargeList', 'Sequence'):
        return _class_label(feature.get('feature'))
    return feature if isinstance(feature, dict) and feature.get('_type') == 'ClassLabel' else None


def _class_names(schema: Schema, path: Path) -> dict[str, list[str]]:
    """Returns {column of integer labels: class names}, which `datasets` stores in a file's schema; {} without any."""
    text = (schema.metadata or {}).get(b'huggingface')
    if text is None:
        return {}
    where = f"{path}: metadata 'huggingface'"
    try:
        features = parse_json(text.decode())['info']['features']
        found = {name: _class_label(feature) for name, feature in features.items()}
        return {name: [str(one) for one in label['names']] for name, label in found.items() if label}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f'{where}: cannot be read ({type(error).__name__}: {one_line(error)})') from None
