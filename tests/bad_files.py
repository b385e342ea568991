"""Makes the damaged, absurd or hostile files of tests/bad_inputs.py and tests/test_hostile_files.py."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

# A function writes the file itself; it is given the file's path and the shared folder.
Content = bytes | str | Callable[[Path, Path], None]
DEEP = '[' * 1_000_000
WORDS = '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ndog\n'
RECORD = 'checkpoints/0/record/metadata'
QUESTION = {'id': 'a', 'question': 'Who?', 'answers': [{'text': 'dog', 'answer_start': 0}]}
SPLIT = {'type': 'Split', 'pattern': {'Regex': '(a+)+$'}, 'behavior': 'Isolated', 'invert': False}
GROWING = {
    'type': 'Sequence',
    'normalizers': [{'type': 'Replace', 'pattern': {'String': ' '}, 'content': ' ' * 99}] * 4,
}


def copied(name: str, *changes: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    """Returns a function that copies a folder of the shared folder and changes the copy."""

    def make(path: Path, base: Path) -> None:
        shutil.copytree(base / name, path)
        for change in changes:
            change(path)

    return make


def parquet_file(**columns: list[Any]) -> Callable[[Path, Path], None]:
    """Returns a function that writes a Parquet file with these columns."""
    return lambda path, _: parquet.write_table(pyarrow.table(columns), path)


def written(name: str, content: bytes | str) -> Callable[[Path], Any]:
    """Returns a function that replaces one file of a folder."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def index_of_shards(content: str) -> Callable[[Path], Any]:
    """Returns a function that replaces a folder's safetensors file by an index of shards."""

    def change(folder: Path) -> None:
        (folder / 'model.safetensors').unlink()
        (folder / 'model.safetensors.index.json').write_text(content)

    return change


def fields(**values: Any) -> Callable[[Path], Any]:
    """Returns a function that sets fields of a folder's config.json; a field of a group is named group__field."""

    def change(folder: Path) -> None:
        found = json.loads((folder / 'config.json').read_text())
        for name, value in values.items():
            group, _, field = name.rpartition('__')
            (found[group] if group else found)[field] = value
        (folder / 'config.json').write_text(json.dumps(found))

    return change


def tensors(header: Any, data: bytes = b'', length: int | None = None) -> Callable[[Path], Any]:
    """Returns a function that replaces a folder's safetensors file by one with this header, whose stated length may be
    wrong.
    """
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = struct.pack('<Q', len(text) if length is None else length)
    return written('model.safetensors', size + text + data)


def tensor(shape: list[int], start: int = 0, end: int = 4, dtype: str = 'F32') -> dict[str, Any]:
    """Returns the entry of one tensor in a safetensors header."""
    return {'dtype': dtype, 'shape': shape, 'data_offsets': [start, end]}


def promised(gibibytes: int) -> Callable[[Path], Any]:
    """Returns a function that replaces a folder's safetensors file by a sparse file as large as its header says."""

    def change(folder: Path) -> None:
        size = gibibytes * 2**30
        header = json.dumps({'a': tensor([size // 4], 0, size)}).encode()
        with (folder / 'model.safetensors').open('wb') as file:
            file.write(struct.pack('<Q', len(header)) + header)
            file.truncate(8 + len(header) + size)

    return change


def tokenizer(**parts: Any) -> str:
    """Returns the text of a tokenizer.json with seven pieces, some of whose parts are replaced."""
    vocabulary = {piece: id for id, piece in enumerate(WORDS.split())}
    pieces = {'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'vocab': vocabulary}
    plain = dict.fromkeys(('truncation', 'padding', 'normalizer', 'pre_tokenizer', 'post_processor', 'decoder'))
    whole = {'version': '1.0', 'added_tokens': [], **plain, 'model': pieces | {'max_input_chars_per_word': 100}}
    return json.dumps(whole | parts)


def questions(**changed: Any) -> str:
    """Returns the text of a SQuAD JSON file with one question."""
    return json.dumps({'data': [{'paragraphs': [{'context': 'dog', 'qas': [QUESTION | changed]}]}]})


def unsealed(folder: Path) -> None:
    """Removes the checksums of a run's checkpoint, so that it looks like one from before there were checksums."""
    (folder / 'checkpoints' / '0' / 'seal-0-of-1.sha256').unlink()
    record = json.loads((folder / RECORD).read_text())
    del record['has_seal']
    (folder / RECORD).write_text(json.dumps(record))


def not_finite(path: Path) -> None:
    """Writes a NaN into the last tensor of a safetensors file."""
    content = path.read_bytes()
    path.write_bytes(content[:-4] + struct.pack('<f', float('nan')))


class Payload:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f'touch {self.path}',)


def pickled(path: Path) -> bytes:
    """Returns a pickle that creates the file `path` when it is loaded."""
    return pickle.dumps(Payload(path))
