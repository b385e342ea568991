"""Caches the rows of a Long Range Arena dataset on disk, in a folder whose name has a hash of the dataset and the
split.

manifest.json   the dataset's config text, split and counts; bytes and SHA-256 of every other file; its own checksum
ids.npy         uint16, the ids of all texts in their fixed vocabulary, concatenated
ends.npy        int64 [rows, texts], end of each text in ids.npy
labels.npy      uint8 [rows]
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from efficient_attention.atomic_files import write_atomically
from efficient_attention.data.arena.dataset_interface import ArenaDataset, ArenaRow, GeneratedDataset
from efficient_attention.data.arena.parallel_generation import generate_rows_in_parallel
from efficient_attention.data.preparation.cache_folder import (
    MANIFEST,
    check_file_checksums,
    file_sizes_and_checksums,
    json_sha256,
    load_array,
    manifest_checksum,
    new_cache_folder,
    read_manifest,
)
from efficient_attention.data.preparation.progress import Progress
from efficient_attention.data.tokenizers.fixed_vocabulary import FIRST_WORD
from efficient_attention.errors import InputError

FORMAT = 2
ARRAYS = ('ids', 'ends', 'labels')
CONTENT = 'rows'


class CachedRow(NamedTuple):
    """A row of one or two texts as ids of a fixed vocabulary, uint16 [l], memory-mapped from the cache, with its class
    number."""

    texts: tuple[np.ndarray, ...]
    label: int

    def to_arena_row(self, length: int | None = None) -> ArenaRow:
        """Returns the row as it was before caching, in word indices; with `length`, only the first words of each
        text."""
        return ArenaRow(tuple(text[:length] - FIRST_WORD for text in self.texts), self.label)


def dataset_hash(arena_set: ArenaDataset, split: str) -> str:
    """Returns a SHA-256 hash that identifies the rows of a split; it covers the dataset's text in the config and the
    files it reads."""
    # The format of the cache folder is not in the hash, so that a resumed run may use another format.
    identity = {'format': 1, 'rules': arena_set.rules, 'split': split}
    return json_sha256(identity | {'set': arena_set.text, 'digest': arena_set.digest(split)})


def labelled_dataset_hash(arena_set: ArenaDataset, split: str) -> str:
    """Returns a hash that identifies the rows of a split and their labels; it extends `dataset_hash` by the number of
    files per class."""
    classes = arena_set.class_file_counts(split)
    return json_sha256([dataset_hash(arena_set, split), classes]) if classes else dataset_hash(arena_set, split)


def cached_rows(
    arena_set: ArenaDataset, split: str, cache: Path, *, field: str = 'examples.cache', show_progress: bool = True
) -> Iterator[CachedRow]:
    """Returns the rows of a split from the cache; if they are not in the cache, generates or reads them and caches
    them.

    Args:
        arena_set: the dataset.
        split: 'train', 'dev' or 'test'.
        cache: the folder of all caches.
        field: name of the config field with this folder.
        show_progress: a progress bar on the standard error stream, or plain lines where that is no terminal.

    Raises:
        InputError: a file is missing or invalid, there is no row, or the cached folder is damaged.
    """
    folder = cache / f'{arena_set.kind}-{labelled_dataset_hash(arena_set, split)[:16]}-{FORMAT}'
    if not (folder / MANIFEST).is_file():
        with Progress(f'preparing {arena_set.text} ({split})', is_shown=show_progress) as progress:
            progress.start('rows', arena_set.count if isinstance(arena_set, GeneratedDataset) else None)
            with new_cache_folder(folder, field) as partial:
                count = _write_row_cache(partial, arena_set, split, progress)
            progress.print_line(f'{count:,} rows: {folder}')
    manifest = read_manifest(folder, FORMAT, CONTENT)
    check_file_checksums(folder, manifest, CONTENT)
    ids, ends_RT, labels_R = (load_array(folder / f'{name}.npy', CONTENT, is_mapped=True) for name in ARRAYS)
    return _split_into_rows(ids, ends_RT, labels_R)


def _split_into_rows(ids: np.ndarray, ends_RT: np.ndarray, labels_R: np.ndarray) -> Iterator[CachedRow]:
    start = 0
    for ends, label in zip(ends_RT.tolist(), labels_R.tolist(), strict=True):
        borders = [start, *ends]
        yield CachedRow(tuple(ids[first:last] for first, last in zip(borders[:-1], ends, strict=True)), label)
        start = ends[-1]


def _write_row_cache(folder: Path, arena_set: ArenaDataset, split: str, progress: Progress) -> int:
    """Writes the rows into a cache folder one by one, so that memory does not grow; returns the number of rows."""
    lengths: list[list[int]] = []
    labels: list[int] = []
    with (folder / 'ids.npy').open('wb') as file:
        _write_header(file, 0)
        for row in generate_rows_in_parallel(arena_set, split):
            for text in row.texts:
                file.write((text + FIRST_WORD).astype('<u2').tobytes())
            lengths.append([len(text) for text in row.texts])
            labels.append(row.label)
            progress.advance(1)
        if not labels:
            raise InputError(f'{arena_set.text}: no row of the split {split!r}')
        lengths_RT = np.array(lengths, np.int64)
        file.seek(0)
        _write_header(file, int(lengths_RT.sum()))
    np.save(folder / 'ends.npy', np.cumsum(lengths_RT).reshape(lengths_RT.shape))
    np.save(folder / 'labels.npy', np.array(labels, np.uint8))
    manifest = {'format': FORMAT, 'rules': arena_set.rules, 'set': arena_set.text, 'split': split}
    counts = {'rows': len(labels), 'ids': int(lengths_RT.sum())}
    manifest |= {'counts': counts, 'files': file_sizes_and_checksums(folder)}
    manifest['checksum'] = manifest_checksum(manifest)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2) + '\n')
    return len(labels)


def _write_header(file: BinaryIO, count: int) -> None:
    """Writes the NumPy header of an array of `count` ids; NumPy pads headers, so their length does not depend on
    `count`."""
    description = {'descr': '<u2', 'fortran_order': False, 'shape': (count,)}
    np.lib.format.write_array_header_1_0(file, description)
