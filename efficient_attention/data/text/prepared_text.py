"""Opens a text that was prepared as ids, after checking its files; this docstring describes the files.

A prepared text is a folder that is written once and never changed:

    manifest.json         source, settings, counts; bytes and SHA-256 of every other file; its own checksum
    train.ids ...         the ids of each split, end to end, in the smallest unsigned type; memory-mapped
    train_starts.npy ...  int64 [documents], the first token of each document of the split
    unigram_counts.npy    int64 [V], counts of each id in the train split
    characters.json, words.json or tokenizer.json   the vocabulary, where there is one
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.data.preparation.cache_folder import (
    UNIGRAM_COUNTS,
    check_file_checksums,
    load_array,
    read_manifest,
)
from efficient_attention.data.text.rows import TextRows
from efficient_attention.data.text.splits import SPLITS
from efficient_attention.data.text.text_units import TextUnits, load_units

FORMAT = 2  # version of the folder's format; it is in the fingerprint, so that a new format never reads an old cache


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedText:
    """An open prepared text: the ids of its splits, its units (vocabulary), and its fingerprint."""

    folder: Path
    manifest: dict[str, Any]
    units: TextUnits
    splits: dict[str, np.ndarray]  # split ('train', 'held_out' or 'test') -> its ids, unsigned [tokens], memory-mapped
    document_starts: dict[str, np.ndarray]  # split -> position of each document's first token, int64 [documents]
    unigram_counts: np.ndarray  # int64 [V]: how often each id occurs in the train split
    fingerprint: str  # SHA-256 over source, settings and the ids themselves

    def rows(self, split: str, length: int, *, cut_at_documents: bool = False) -> TextRows:
        """Returns rows of `length` tokens from a split; `TextRows` describes them."""
        return TextRows(self.splits[split], length, self.document_starts[split], cut_at_documents, self.units.start)


def ids_path(folder: Path, split: str) -> Path:
    """Returns the path of the file with the ids of a split."""
    return folder / f'{split}.ids'


def document_starts_path(folder: Path, split: str) -> Path:
    """Returns the path of the file that lists where the documents of a split start."""
    return folder / f'{split}_starts.npy'


def token_dtype(size: int) -> str:
    """Returns the smallest NumPy type for ids below `size` on disk: unsigned, little endian."""
    return '<u1' if size <= 2**8 else '<u2' if size <= 2**16 else '<u4'


def open_text(folder: Path) -> PreparedText:
    """Opens the prepared text in a folder, after it has compared every file with the checksums of the manifest.

    Raises:
        InputError: a file is missing, damaged, or of another version; the message names the file and the remedy.
    """
    manifest = read_manifest(folder, FORMAT, 'text')
    check_file_checksums(folder, manifest, 'text')
    return PreparedText(
        folder=folder,
        manifest=manifest,
        units=load_units(manifest['settings']['units'], folder),
        splits={split: _memory_map(ids_path(folder, split), manifest['id_type']) for split in SPLITS},
        document_starts={split: load_array(document_starts_path(folder, split), 'text') for split in SPLITS},
        unigram_counts=load_array(folder / UNIGRAM_COUNTS, 'text'),
        fingerprint=manifest['fingerprint'],
    )


def _memory_map(path: Path, kind: str) -> np.ndarray:
    if not path.stat().st_size:  # An empty file cannot be memory-mapped.
        return np.zeros(0, kind)
    return np.memmap(path, kind, 'r')
