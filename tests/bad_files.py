"""Makes the files of tests/bad_inputs.py and tests/test_hostile_files.py: damaged, absurd, or hostile ones."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Content = bytes | str | Callable[[Path, Path], None]  # or what makes the file, from its path and the shared folder
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
    """Makes a changed copy of what the shared folder has under a name."""

    def make(path: Path, base: Path) -> None:
        shutil.copytree(base / name, path)
        for change in changes:
            change(path)

    return make


def written(name: str, content: bytes | str) -> Callable[[Path], Any]:
    """Replaces a file of a folder."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def index_of_shards(content: str) -> Callable[[Path], Any]:
    """Replaces a folder's safetensors by an index of shards."""

    def change(folder: Path) -> None:
        (folder / 'model.safetensors').unlink()
        (folder / 'model.safetensors.index.json').write_text(content)

    return change


def fields(**values: Any) -> Callable[[Path], Any]:
    """Sets fields of a folder's config.json, those of a group as group__field."""

    def change(folder: Path) -> None:
        found = json.loads((folder / 'config.json').read_text())
        for name, value in values.items():
            group, _, field = name.rpartition('__')
            (found[group] if group else found)[field] = value
        (folder / 'config.json').write_text(json.dumps(found))

    return change


def tensors(header: Any, data: bytes = b'', length: int | None = None) -> Callable[[Path], Any]:
    """Replaces a folder's safetensors by a file with this header, which may lie about its own length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = struct.pack('<Q', len(text) if length is None else length)
    return written('model.safetensors', size + text + data)


def tensor(shape: list[int], start: int = 0, end: int = 4, dtype: str = 'F32') -> dict[str, Any]:
    """What a header says of a tensor."""
    return {'dtype': dtype, 'shape': shape, 'data_offsets': [start, end]}


def promised(gibibytes: int) -> Callable[[Path], Any]:
    """Replaces a folder's safetensors by a file that has as many bytes as its header says, all of them holes."""

    def change(folder: Path) -> None:
        size = gibibytes * 2**30
        header = json.dumps({'a': tensor([size // 4], 0, size)}).encode()
        with (folder / 'model.safetensors').open('wb') as file:
            file.write(struct.pack('<Q', len(header)) + header)
            file.truncate(8 + len(header) + size)

    return change


def tokenizer(**parts: Any) -> str:
    """A tokenizer.json of seven pieces with some parts replaced."""
    vocabulary = {piece: id for id, piece in enumerate(WORDS.split())}
    pieces = {'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'vocab': vocabulary}
    plain = dict.fromkeys(('truncation', 'padding', 'normalizer', 'pre_tokenizer', 'post_processor', 'decoder'))
    whole = {'version': '1.0', 'added_tokens': [], **plain, 'model': pieces | {'max_input_chars_per_word': 100}}
    return json.dumps(whole | parts)


def questions(**changed: Any) -> str:
    """SQuAD's JSON with one question."""
    return json.dumps({'data': [{'paragraphs': [{'context': 'dog', 'qas': [QUESTION | changed]}]}]})


def unsealed(folder: Path) -> None:
    """Makes a run's checkpoint one from before there were checksums."""
    (folder / 'checkpoints' / '0' / 'seal-0-of-1.sha256').unlink()
    record = json.loads((folder / RECORD).read_text())
    del record['has_seal']
    (folder / RECORD).write_text(json.dumps(record))


def not_finite(path: Path) -> None:
    """Writes a NaN into the last tensor of a safetensors file."""
    content = path.read_bytes()
    path.write_bytes(content[:-4] + struct.pack('<f', float('nan')))


class Payload:
    """Its pickle makes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f'touch {self.path}',)


def pickled(path: Path) -> bytes:
    """A pickle that makes this file when it is opened."""
    return pickle.dumps(Payload(path))
