"""How a text lies on disk as ids, and how it is opened and checked.

A folder that is written once and never changed:

    manifest.json         source, settings, counts; bytes and SHA-256 of every other file; its own checksum
    train.ids ...         the ids of each split, one after another, in the smallest unsigned type; memory-mapped
    unigram_counts.npy    int64 [V], how often each id occurs in the train split
    characters.json or tokenizer.json   the vocabulary, where there is one
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.data.corpus import MANIFEST, UNIGRAM_COUNTS, file_sha256, manifest_checksum
from efficient_attention.data.text_splits import SPLITS
from efficient_attention.data.units import Units, load_units
from efficient_attention.errors import InputError

FORMAT = 1  # of the folder; part of its fingerprint, so a new format never reads an old cache


@dataclasses.dataclass(frozen=True, eq=False)
class TokenText:
    """A text as ids, opened: its splits, its units, and what identifies it."""

    folder: Path
    manifest: dict[str, Any]
    units: Units
    splits: dict[str, np.ndarray]  # 'train', 'held_out', 'test': unsigned [tokens], memory-mapped
    unigram_counts: np.ndarray  # int64 [V], of the train split
    fingerprint: str  # SHA-256 over source, settings and the ids themselves


def ids_path(folder: Path, split: str) -> Path:
    """Where the ids of a split lie."""
    return folder / f'{split}.ids'


def id_type(size: int) -> str:
    """The NumPy type in which ids below `size` lie on disk, little endian."""
    return '<u1' if size <= 2**8 else '<u2' if size <= 2**16 else '<u4'


def open_text(folder: Path) -> TokenText:
    """The text in `folder`, after comparing every file with the manifest.

    Raises:
        InputError: a file is missing or damaged, or of another version; names the file and what to do.
    """
    manifest = _read_manifest(folder)
    for name, expected in manifest['files'].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected['bytes'] or file_sha256(path) != expected['sha256']:
            raise InputError(f'{path}: missing or damaged; delete the folder {folder} to prepare the text again')
    return TokenText(
        folder=folder,
        manifest=manifest,
        units=load_units(manifest['settings']['units'], folder),
        splits={split: _map(ids_path(folder, split), manifest['id_type']) for split in SPLITS},
        unigram_counts=np.load(folder / UNIGRAM_COUNTS, allow_pickle=False),
        fingerprint=manifest['fingerprint'],
    )


def _map(path: Path, kind: str) -> np.ndarray:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.zeros(0, kind)
    return np.memmap(path, kind, 'r')


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    advice = f'delete the folder {folder} to prepare the text again'
    try:
        manifest = json.loads(path.read_bytes())
        is_whole = manifest['checksum'] == manifest_checksum(manifest)
    except (OSError, ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise InputError(f'{path}: missing or damaged; {advice}')
    if manifest['format'] != FORMAT:
        raise InputError(f'{path}: format {manifest["format"]}, this version reads {FORMAT}; {advice}')
    return manifest
