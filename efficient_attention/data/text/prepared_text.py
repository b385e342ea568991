"""The files of a text as ids, and how they are opened and checked.

A folder that is written once and never changed:

    manifest.json         source, settings, counts; bytes and SHA-256 of every other file; its own checksum
    train.ids ...         the ids of each split, one after another, in the smallest unsigned type; memory-mapped
    train_starts.npy ...  int64 [documents], where in its ids each document of the split starts
    unigram_counts.npy    int64 [V], how often each id occurs in the train split
    characters.json, words.json or tokenizer.json   the vocabulary, where there is one
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.data.preparation.cache_folder import UNIGRAM_COUNTS, check_files, load_array, read_manifest
from efficient_attention.data.text.rows import TextRows
from efficient_attention.data.text.splits import SPLITS
from efficient_attention.data.text.units import Units, load_units

FORMAT = 2  # of the folder; part of its fingerprint, so a new format never reads an old cache


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedText:
    """A text as ids, opened: its splits, its units, and what identifies it."""

    folder: Path
    manifest: dict[str, Any]
    units: Units
    splits: dict[str, np.ndarray]  # 'train', 'held_out', 'test': unsigned [tokens], memory-mapped
    document_starts: dict[str, np.ndarray]  # of each split: int64 [documents], the first token of each
    unigram_counts: np.ndarray  # int64 [V], of the train split
    fingerprint: str  # SHA-256 over source, settings and the ids themselves

    def rows(self, split: str, length: int, *, cut_at_documents: bool = False) -> TextRows:
        """A split as rows of `length` tokens, see `TextRows`."""
        return TextRows(self.splits[split], length, self.document_starts[split], cut_at_documents, self.units.start)


def ids_path(folder: Path, split: str) -> Path:
    """Where the ids of a split lie."""
    return folder / f'{split}.ids'


def starts_path(folder: Path, split: str) -> Path:
    """Where the starts of a split's documents lie."""
    return folder / f'{split}_starts.npy'


def id_type(size: int) -> str:
    """The NumPy type in which ids below `size` lie on disk, little endian."""
    return '<u1' if size <= 2**8 else '<u2' if size <= 2**16 else '<u4'


def open_text(folder: Path) -> PreparedText:
    """The text in `folder`, after comparing every file with the manifest.

    Raises:
        InputError: a file is missing or damaged, or of another version; names the file and what to do.
    """
    manifest = read_manifest(folder, FORMAT, 'text')
    check_files(folder, manifest, 'text')
    return PreparedText(
        folder=folder,
        manifest=manifest,
        units=load_units(manifest['settings']['units'], folder),
        splits={split: _map(ids_path(folder, split), manifest['id_type']) for split in SPLITS},
        document_starts={split: load_array(starts_path(folder, split), 'text') for split in SPLITS},
        unigram_counts=load_array(folder / UNIGRAM_COUNTS, 'text'),
        fingerprint=manifest['fingerprint'],
    )


def _map(path: Path, kind: str) -> np.ndarray:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.zeros(0, kind)
    return np.memmap(path, kind, 'r')
