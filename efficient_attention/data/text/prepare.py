"""Converts the text of a source to ids and caches them; the cache folder is named by a hash of text and settings."""

import collections
import functools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.config.data import DataConfig
from efficient_attention.data.preparation.cache_folder import (
    MANIFEST,
    UNIGRAM_COUNTS,
    file_sizes_and_checksums,
    json_sha256,
    manifest_checksum,
    new_cache_folder,
)
from efficient_attention.data.preparation.progress import Progress
from efficient_attention.data.sources.images import open_images
from efficient_attention.data.sources.text_source import TextSource, open_source
from efficient_attention.data.text.prepared_text import (
    FORMAT,
    PreparedText,
    document_starts_path,
    ids_path,
    open_text,
    token_dtype,
)
from efficient_attention.data.text.splits import SPLITS, SplitTexts, split_text
from efficient_attention.data.text.text_units import (
    SEPARATOR,
    ByteUnits,
    CharacterUnits,
    PixelUnits,
    Text,
    TextUnits,
    TokenizerUnits,
    WordUnits,
    cut_lines,
    split_words,
)
from efficient_attention.data.tokenizers.config_tokenizer import (
    load_config_tokenizer,
    tokenizer_identity,
    train_config_tokenizer,
)

OF_SPLITS = ('units', 'splitting', 'held_out', 'test')  # config fields that determine the splits of a text
RULES = 1  # version of the rules for splits, units and separators; a new version prepares all texts again


def prepare_text(config: DataConfig, *, units: TextUnits | None = None, show_progress: bool = True) -> PreparedText:
    """Returns the text that a config describes, as ids; builds and caches it if it is not in the cache.

    Args:
        config: `source`, `units`, `splitting`, `held_out`, `test` and `cache` are read. Tokenizer units also read
            `tokenizer`, `vocab_size` and `lowercase`; words read `min_count` and `lowercase`; pixels read
            `image_shape`.
        units: the vocabulary of a trained model; None = loaded or learned as the config says.
        show_progress: a progress bar on the standard error stream, or plain lines where that is no terminal.

    Raises:
        InputError: the source, the tokenizer or the cached folder is invalid; the message has one line.
    """
    tokenizer = load_config_tokenizer(config) if config.units == 'tokenizer' and units is None else None
    source = _open_text_source(config)
    of_units = _settings(config) if units is None else _settings_of_units(config, units)
    settings = of_units | {'format': FORMAT, 'rules': RULES, 'source_sha256': source.digest()}
    folder = Path(config.cache) / f'{config.units}-{json_sha256(settings)[:16]}'
    if not (folder / MANIFEST).is_file():
        with Progress(f'preparing {config.source}', is_shown=show_progress) as progress:
            started = time.monotonic()
            progress.start('reading')
            texts_by_split = split_text(source, config)
            if tokenizer is not None:
                units = TokenizerUnits(tokenizer, config.tokenizer)
            elif units is None:
                units = _learn_vocabulary(config, texts_by_split, progress)
            with new_cache_folder(folder) as partial:
                counts = _write_text_ids(partial, texts_by_split, units, progress)
                _write_manifest(partial, settings | {'source': config.source}, units, counts)
            tokens = ', '.join(f'{counts[split]["tokens"]:,} {split}' for split in SPLITS)
            progress.print_line(f'tokens: {tokens}, in {time.monotonic() - started:.1f} s: {folder}')
    return open_text(folder)


def _open_text_source(config: DataConfig) -> TextSource[str] | TextSource[bytes]:
    return open_images(config.source, config.image_shape) if config.units == 'pixels' else open_source(config.source)


def _settings(config: DataConfig) -> dict[str, Any]:
    settings = {name: getattr(config, name) for name in OF_SPLITS}
    if config.units == 'tokenizer':
        return settings | tokenizer_identity(config)
    read = {'words': ('min_count', 'lowercase'), 'pixels': ('image_shape',)}.get(config.units, ())
    return settings | {name: getattr(config, name) for name in read}


def _settings_of_units(config: DataConfig, units: TextUnits) -> dict[str, Any]:
    """Returns the settings that determine the ids of a text in the vocabulary of a trained model."""
    with tempfile.TemporaryDirectory() as folder:
        units.save(Path(folder))
        vocabulary = json_sha256(file_sizes_and_checksums(Path(folder)))
    return {name: getattr(config, name) for name in (*OF_SPLITS, 'image_shape')} | {'vocabulary': vocabulary}


def _learn_vocabulary(config: DataConfig, texts_by_split: SplitTexts, progress: Progress) -> TextUnits:
    """Returns the text units that a config names; characters, words and tokenizers are learned from only the train
    split."""
    if config.units in ('bytes', 'pixels'):
        return ByteUnits() if config.units == 'bytes' else PixelUnits()
    progress.start('learning the vocabulary')
    if config.units == 'words':
        counts = _count_words(texts_by_split, lowercase=config.lowercase)
        return WordUnits.from_counts(counts, min_count=config.min_count, lowercase=config.lowercase)
    texts = functools.partial(_training_texts, texts_by_split)
    if config.units == 'characters':
        characters: set[str] = set()
        for text in texts():
            characters.update(text)
        return CharacterUnits(characters)
    return TokenizerUnits(train_config_tokenizer(config, texts, sum(map(len, texts()))), config.tokenizer)


def _count_words(texts_by_split: SplitTexts, *, lowercase: bool) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for split, text in texts_by_split():
        if split == 'train' and isinstance(text, str):
            for lines in cut_lines(text):
                counts.update(split_words(lines, lowercase=lowercase))
    return counts


def _training_texts(texts_by_split: SplitTexts) -> Iterator[str]:
    """Yields the texts of the train split, and a separator between two texts."""
    is_first = True
    for split, text in texts_by_split():
        if split == 'train' and isinstance(text, str):
            if not is_first:
                yield SEPARATOR
            yield text
            is_first = False


def _write_text_ids(
    folder: Path, texts_by_split: SplitTexts, units: TextUnits, progress: Progress
) -> dict[str, dict[str, int]]:
    """Writes the vocabulary, the ids of all splits and the unigram counts; returns each split's counts for the
    manifest."""
    progress.start('encoding')
    writers = {split: IdsWriter(folder, split, units) for split in SPLITS}
    for split, text in texts_by_split():
        writers[split].add(text)
        progress.advance(len(text))
    counts = {split: writer.close() for split, writer in writers.items()}
    np.save(folder / UNIGRAM_COUNTS, writers['train'].unigram_counts, allow_pickle=False)
    units.save(folder)
    return counts


class IdsWriter:
    """Writes the ids of one split to a file, document by document."""

    def __init__(self, folder: Path, split: str, units: TextUnits) -> None:
        self.unigram_counts = np.zeros(units.size, np.int64)
        self._units = units
        self._folder, self._split = folder, split
        self._starts: list[int] = []
        self._tokens, self._bytes = 0, 0
        self._file = ids_path(folder, split).open('wb')

    def add(self, text: Text) -> None:
        """Appends a document, or the part of it that is in this split; writes a separator before it, except before the
        first."""
        if self._starts:
            self._append(self._units.separator)
        self._starts.append(self._tokens)
        self._bytes += len(text.encode() if isinstance(text, str) else text)
        for section in self._units.split_into_sections(text):
            self._append(self._units.encode(section))

    def close(self) -> dict[str, int]:
        """Closes the file of ids; returns the numbers of documents, tokens and unknown tokens, and the bytes of the
        documents.
        """
        self._file.close()
        np.save(document_starts_path(self._folder, self._split), np.array(self._starts, np.int64), allow_pickle=False)
        unknown = int(self.unigram_counts[self._units.unknown]) if self._units.unknown >= 0 else 0
        counts = {'documents': len(self._starts), 'tokens': self._tokens, 'unknown': unknown}
        return counts | {'bytes': self._bytes}

    def _append(self, ids: np.ndarray) -> None:
        self._file.write(ids.astype(token_dtype(self._units.text_vocabulary_size)).tobytes())
        self._tokens += len(ids)
        self.unigram_counts += np.bincount(ids, minlength=len(self.unigram_counts))


def _write_manifest(folder: Path, settings: dict[str, Any], units: TextUnits, counts: dict[str, Any]) -> None:
    files = file_sizes_and_checksums(folder)
    # The fingerprint leaves out the path of the source, so that files may be moved.
    identity = {name: value for name, value in settings.items() if name != 'source'}
    manifest = {
        'format': FORMAT,
        'settings': settings,
        'size': units.size,
        'id_type': token_dtype(units.text_vocabulary_size),
        'counts': counts,
        'files': files,
        'fingerprint': json_sha256([identity, files]),
    }
    manifest['checksum'] = manifest_checksum(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + '\n', encoding='utf-8')
