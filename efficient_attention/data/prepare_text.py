"""A source's text to ids in the cache, once: the folder is found by what the text and the settings are."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.cache import new_folder
from efficient_attention.data.config import DataConfig
from efficient_attention.data.corpus import (
    MANIFEST,
    UNIGRAM_COUNTS,
    describe_files,
    file_sha256,
    manifest_checksum,
)
from efficient_attention.data.encoding import cut_pieces
from efficient_attention.data.prepare import TRAINING_CHARACTERS
from efficient_attention.data.progress import Progress
from efficient_attention.data.sources import open_source
from efficient_attention.data.splitting import HASHES, document_hash
from efficient_attention.data.text_splits import SPLITS, Parts, split_text
from efficient_attention.data.token_text import FORMAT, TokenText, id_type, ids_path, open_text
from efficient_attention.data.tokenizer_training import TRAINERS, train_tokenizer
from efficient_attention.data.tokenizers import load_tokenizer
from efficient_attention.data.units import SEPARATOR, Bytes, Characters, Pieces, Text, Units
from efficient_attention.errors import InputError

RULES = 1  # of splits, units and separators; a change of them is a new text


def prepare_text(config: DataConfig, *, show_progress: bool = True) -> TokenText:
    """The text of a config as ids: from the cache where it is there, else built and cached.

    Args:
        config: `source`, `units`, `splitting`, `held_out`, `test` and `cache` are read, with tokenizer units also
            `tokenizer`, `vocab_size` and `lowercase`.
        show_progress: a progress bar on the standard error stream, or plain lines where that is no terminal.

    Raises:
        InputError: the source, the tokenizer or the cached folder is not as it should be; one line says what.
    """
    tokenizer = _loaded_tokenizer(config)
    source = open_source(config.source)
    settings = _settings(config) | {'format': FORMAT, 'rules': RULES, 'source_sha256': source.digest()}
    folder = Path(config.cache) / f'{config.units}-{_sha256(settings)[:16]}'
    if not (folder / MANIFEST).is_file():
        with Progress(f'preparing {config.source}', is_shown=show_progress) as progress:
            started = time.monotonic()
            progress.start('reading')
            parts = split_text(source, config)
            units = Pieces(tokenizer, config.tokenizer) if tokenizer else _learn(config, parts, progress)
            with new_folder(folder) as partial:
                counts = _write(partial, parts, units, progress)
                _write_manifest(partial, settings | {'source': config.source}, units, counts)
            tokens = ', '.join(f'{counts[split]["tokens"]:,} {split}' for split in SPLITS)
            progress.line(f'tokens: {tokens}, in {time.monotonic() - started:.1f} s: {folder}')
    return open_text(folder)


def _loaded_tokenizer(config: DataConfig) -> Tokenizer | None:
    """The tokenizer of a file; None where it is to be trained or the units need none."""
    if config.units != 'tokenizer':
        return None
    kind, is_trained, name = config.tokenizer.partition('train:')
    if not is_trained or kind:
        return load_tokenizer(config.tokenizer, lowercase=config.lowercase)
    if name not in TRAINERS:
        known = ', '.join(f'train:{trainer}' for trainer in TRAINERS)
        raise InputError(f'data.tokenizer is {config.tokenizer!r}; known: {known}, or a file')
    return None


def _settings(config: DataConfig) -> dict[str, Any]:
    settings = {name: getattr(config, name) for name in ('units', 'splitting', 'held_out', 'test')}
    if config.units != 'tokenizer':
        return settings
    is_trained = config.tokenizer.startswith('train:')
    return settings | {
        'tokenizer': config.tokenizer if is_trained else file_sha256(Path(config.tokenizer)),
        'suffix': '' if is_trained else Path(config.tokenizer).suffix,
        'vocab_size': config.vocab_size if is_trained else 0,
        'lowercase': config.lowercase,
    }


def _learn(config: DataConfig, parts: Parts, progress: Progress) -> Units:
    """The units of the config, from the train split alone where they are learned."""
    if config.units == 'bytes':
        return Bytes()
    progress.start('learning the vocabulary')
    if config.units == 'characters':
        characters: set[str] = set()
        for text in _training_texts(parts):
            characters.update(text)
        return Characters(characters)
    total = sum(map(len, _training_texts(parts)))
    share = min(1.0, TRAINING_CHARACTERS / max(total, 1))

    def pieces() -> Iterator[str]:
        every = (piece for text in _training_texts(parts) for piece in cut_pieces(text))
        return (piece for piece in every if share == 1 or document_hash(piece) < share * HASHES)

    name = config.tokenizer.removeprefix('train:')
    tokenizer = train_tokenizer(name, pieces, vocab_size=config.vocab_size, lowercase=config.lowercase)
    return Pieces(tokenizer, config.tokenizer)


def _training_texts(parts: Parts) -> Iterator[str]:
    """The parts of the train split and the separators between them."""
    is_first = True
    for split, text in parts():
        if split == 'train' and isinstance(text, str):
            if not is_first:
                yield SEPARATOR
            yield text
            is_first = False


def _write(folder: Path, parts: Parts, units: Units, progress: Progress) -> dict[str, dict[str, int]]:
    """Writes units, ids and unigram counts; returns the counts of each split for the manifest."""
    progress.start('encoding')
    writers = {split: IdsWriter(folder, split, units) for split in SPLITS}
    for split, text in parts():
        writers[split].add(text)
        progress.advance(len(text))
    counts = {split: writer.close() for split, writer in writers.items()}
    np.save(folder / UNIGRAM_COUNTS, writers['train'].unigram_counts, allow_pickle=False)
    units.save(folder)
    return counts


class IdsWriter:
    """Writes the ids of one split, a document after another."""

    def __init__(self, folder: Path, split: str, units: Units) -> None:
        self.unigram_counts = np.zeros(units.size, np.int64)
        self._units = units
        self._documents = 0
        self._file = ids_path(folder, split).open('wb')

    def add(self, text: Text) -> None:
        """Appends a document, or the part of one that belongs to the split, with the separator before it."""
        if self._documents:
            self._append(self._units.separator)
        for part in self._units.cut(text):
            self._append(self._units.encode(part))
        self._documents += 1

    def close(self) -> dict[str, int]:
        """How much was written."""
        self._file.close()
        unknown = int(self.unigram_counts[self._units.unknown]) if self._units.unknown >= 0 else 0
        return {'documents': self._documents, 'tokens': int(self.unigram_counts.sum()), 'unknown': unknown}

    def _append(self, ids: np.ndarray) -> None:
        self._file.write(ids.astype(id_type(self._units.size)).tobytes())
        self.unigram_counts += np.bincount(ids, minlength=len(self.unigram_counts))


def _write_manifest(folder: Path, settings: dict[str, Any], units: Units, counts: dict[str, Any]) -> None:
    files = describe_files(folder)
    identity = {name: value for name, value in settings.items() if name != 'source'}  # a moved file is the same text
    manifest = {
        'format': FORMAT,
        'settings': settings,
        'size': units.size,
        'id_type': id_type(units.size),
        'counts': counts,
        'files': files,
        'fingerprint': _sha256([identity, files]),
    }
    manifest['checksum'] = manifest_checksum(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + '\n', encoding='utf-8')


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
