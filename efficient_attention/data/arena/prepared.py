"""Rows of a long-range task in the cache: written once, in a folder that a hash of what they are names.

manifest.json   the set's text, split and counts; bytes and SHA-256 of every other file; its own checksum
words.npy       uint16, the words of all texts one after another
ends.npy        int64 [rows, texts], where in it each text ends
labels.npy      uint8 [rows]
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from efficient_attention.data.arena.arena_row import ArenaRow
from efficient_attention.data.arena.arena_set import ArenaSet
from efficient_attention.data.cache_folder import new_folder
from efficient_attention.data.cache_manifest import (
    MANIFEST,
    check_files,
    describe_files,
    json_sha256,
    load_array,
    manifest_checksum,
    read_manifest,
)
from efficient_attention.data.preparation_progress import Progress
from efficient_attention.errors import InputError
from efficient_attention.whole_files import write_atomically

FORMAT = 1
RULES = 1  # of the generators and readers; a change of them is other rows
ARRAYS = ('words', 'ends', 'labels')
CONTENT = 'rows'


def set_identity(arena_set: ArenaSet, split: str) -> str:
    """SHA-256 of what the rows of a split are: the set's text, and what is read for it."""
    identity = {'format': FORMAT, 'rules': RULES, 'split': split}
    return json_sha256(identity | {'set': arena_set.text, 'digest': arena_set.digest(split)})


def prepared_rows(arena_set: ArenaSet, split: str, cache: Path, *, show_progress: bool = True) -> Iterator[ArenaRow]:
    """The rows of a split, from the cache where they are there, else generated or read and cached.

    Args:
        arena_set: which rows.
        split: 'train', 'dev' or 'test'.
        cache: the folder of all caches.
        show_progress: a progress bar on the standard error stream, or plain lines where that is no terminal.

    Raises:
        InputError: what is read is missing or bad, there is no row, or the cached folder is damaged.
    """
    folder = cache / f'{arena_set.kind}-{set_identity(arena_set, split)[:16]}'
    if not (folder / MANIFEST).is_file():
        with Progress(f'preparing {arena_set.text} ({split})', is_shown=show_progress) as progress:
            progress.start('rows')
            rows = list(arena_set.rows(split))
            if not rows:
                raise InputError(f'{arena_set.text}: no row of the split {split!r}')
            with new_folder(folder) as partial:
                _write(partial, arena_set, split, rows)
            progress.line(f'{len(rows):,} rows: {folder}')
    manifest = read_manifest(folder, FORMAT, CONTENT)
    check_files(folder, manifest, CONTENT)
    words, ends_RT, labels_R = (load_array(folder / f'{name}.npy', CONTENT) for name in ARRAYS)
    return _rows(words, ends_RT, labels_R)


def _rows(words: np.ndarray, ends_RT: np.ndarray, labels_R: np.ndarray) -> Iterator[ArenaRow]:
    start = 0
    for ends, label in zip(ends_RT.tolist(), labels_R.tolist(), strict=True):
        borders = [start, *ends]
        yield ArenaRow(tuple(words[first:last] for first, last in zip(borders[:-1], ends, strict=True)), label)
        start = ends[-1]


def _write(folder: Path, arena_set: ArenaSet, split: str, rows: Sequence[ArenaRow]) -> None:
    lengths_RT = np.array([[len(text) for text in row.texts] for row in rows], np.int64)
    words = np.concatenate([text for row in rows for text in row.texts])
    labels_R = np.array([row.label for row in rows], np.uint8)
    arrays: tuple[np.ndarray, ...] = (words.astype('<u2'), np.cumsum(lengths_RT).reshape(lengths_RT.shape), labels_R)
    for name, array in zip(ARRAYS, arrays, strict=True):
        np.save(folder / f'{name}.npy', array)
    manifest = {'format': FORMAT, 'rules': RULES, 'set': arena_set.text, 'split': split}
    manifest |= {'counts': {'rows': len(rows), 'words': len(words)}, 'files': describe_files(folder)}
    manifest['checksum'] = manifest_checksum(manifest)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2) + '\n')
