"""Prepares a corpus from a text source once, and finds it in the cache later.

The name of the cache folder contains a hash of the source's content, the tokenizer and the settings. So a changed file
or tokenizer never reads an old cache. The folder is built under another name and renamed when it is complete
(cache_folder.py).
"""

import array
import dataclasses
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.corpus_split_writer import SplitWriter, write_manifest
from efficient_attention.data.corpus.encoding import encode_documents
from efficient_attention.data.corpus.prepared_corpus import FORMAT, SPLITS, PreparedCorpus, open_corpus
from efficient_attention.data.preparation.cache_folder import (
    MANIFEST,
    TOKENIZER,
    file_sha256,
    json_sha256,
    new_cache_folder,
)
from efficient_attention.data.preparation.held_out_documents import (
    SingleDocumentError,
    document_hash,
    held_out_threshold,
    more_documents_advice,
)
from efficient_attention.data.preparation.progress import Progress
from efficient_attention.data.preparation.worker_processes import usable_cores
from efficient_attention.data.sources.text_source import TextSource, open_source
from efficient_attention.data.tokenizers.config_tokenizer import (
    load_config_tokenizer,
    tokenizer_identity,
    train_config_tokenizer,
)
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError

# version of the rules for sentence splitting, sources and tokenizer training; a new version prepares all corpora again
RULES = 1
# If a source has at most this many characters, its texts stay in memory between its first and second reading.
KEPT_CHARACTERS = 2**24
# Corpora with fewer characters are prepared in one process, because starting worker processes would take longer.
PARALLEL_CHARACTERS = 2**24


def prepare_corpus(config: DataConfig, *, sentinels: int | None = None, show_progress: bool = True) -> PreparedCorpus:
    """Returns the prepared corpus that a config describes; builds and caches it if it is not in the cache.

    Args:
        config: `source`, `held_out`, `cache`, `processes`, `tokenizer`, `vocab_size` and `lowercase` are read.
        sentinels: only for text_to_text: the number of sentinels of a trained tokenizer. A tokenizer file may then
            have more or fewer than `vocab_size` pieces, and lack the special tokens of an encoder.
        show_progress: a progress bar on the standard error stream, or plain lines where that is no terminal.

    Raises:
        InputError: the source, the tokenizer or the cached folder is invalid; the message has one line.
    """
    tokenizer = corpus_tokenizer(config, is_text_to_text=sentinels is not None)
    source = open_source(config.source)
    digest = source.digest()
    folder = corpus_folder(config, digest, sentinels)
    if not (folder / MANIFEST).is_file():
        with Progress(f'preparing {config.source}', is_shown=show_progress) as progress:
            _build_corpus(folder, config, source, digest, tokenizer or (sentinels or 0), progress)
    return open_corpus(folder)


def training_documents(config: DataConfig) -> Iterator[str]:
    """Returns the training documents of a config's source, in order; raises InputError as `prepare_corpus`."""
    with Progress(f'reading {config.source}', is_shown=False) as progress:
        return _scan_source(open_source(config.source), config.held_out, progress).training_documents()


def corpus_tokenizer(config: DataConfig, *, is_text_to_text: bool = False) -> Tokenizer | None:
    """Loads and checks the tokenizer file that a config names; returns None if the config asks to train a tokenizer.

    With `is_text_to_text`, it may lack an encoder's special tokens, and have more or fewer pieces than `vocab_size`.
    """
    tokenizer = load_config_tokenizer(config, is_text_to_text=is_text_to_text)
    if tokenizer and not is_text_to_text:
        size = vocabulary_of(tokenizer, config.tokenizer).size
        if size != config.vocab_size:
            raise InputError(
                f'data.vocab_size is {config.vocab_size}; the tokenizer {config.tokenizer} has {size} pieces'
            )
    return tokenizer


def corpus_folder(config: DataConfig, digest: str, sentinels: int | None = None) -> Path:
    """Returns the cache folder of a corpus; its name contains a hash of the source's content and all settings.

    The task text_to_text shares the corpora of other tasks, except if its tokenizer differs: a trained one with
    sentinels, or a SentencePiece file, which this task reads differently.
    """
    key = {
        'format': FORMAT,
        'rules': RULES,
        'source': digest,
        'held_out': config.held_out,
        **tokenizer_identity(config),
        'vocab_size': config.vocab_size,
    }
    if sentinels and config.tokenizer.startswith('train:'):
        key['sentinels'] = sentinels
    if sentinels is not None and config.tokenizer.endswith('.model'):
        key['sentinels'] = 'of the file'
    return Path(config.cache) / f'{config.source.partition(":")[0]}-{json_sha256(key)[:16]}'


def _build_corpus(
    folder: Path, config: DataConfig, source: TextSource, digest: str, tokenizer: Tokenizer | int, progress: Progress
) -> None:
    """Writes the corpus into a new cache folder; `tokenizer` is a tokenizer, or the number of sentinels of a tokenizer
    to train."""
    started = time.monotonic()
    survey = _scan_source(source, config.held_out, progress)
    with new_cache_folder(folder) as partial:
        if isinstance(tokenizer, int):
            progress.start('learning the vocabulary')
            tokenizer = train_config_tokenizer(config, survey.training_documents, survey.characters, tokenizer)
        (partial / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding='utf-8')
        counts, unigram_counts, content = _encode_splits(partial, config, survey, tokenizer.get_vocab_size(), progress)
        parts = CorpusStatistics(digest, content, survey.characters, counts, time.monotonic() - started)
        write_vocabulary_and_manifest(partial, config, tokenizer, unigram_counts, parts)
    progress.print_line(f'{describe_counts(counts)}, in {time.monotonic() - started:.1f} s: {folder}')


class CorpusStatistics(NamedTuple):
    """Facts about a corpus that its manifest contains in addition to its settings."""

    source_sha256: str
    content_sha256: str  # SHA-256 of the ids of both splits
    characters: int
    counts: dict[str, dict[str, int]]  # split -> numbers of documents, sentences, tokens, records and shards
    seconds: float


def write_vocabulary_and_manifest(
    folder: Path, config: DataConfig, tokenizer: Tokenizer, unigram_counts: np.ndarray, parts: CorpusStatistics
) -> None:
    """Writes the vocabulary files and the manifest of a corpus whose splits have been written."""
    identity = {
        'format': FORMAT,
        'rules': RULES,
        'source_sha256': parts.source_sha256,
        'tokenizer_sha256': file_sha256(folder / TOKENIZER),
        'held_out': config.held_out,
        # The hash of the ids detects changes of rules and libraries that no other field of the manifest detects.
        'content_sha256': parts.content_sha256,
    }
    manifest = {
        **identity,
        'fingerprint': json_sha256(identity),
        'source': config.source,
        'settings': {name: getattr(config, name) for name in ('tokenizer', 'vocab_size', 'lowercase')},
        'characters': parts.characters,
        'counts': parts.counts,
        'made_with': {'python': platform.python_version(), 'tokenizers': importlib.metadata.version('tokenizers')},
        'seconds': round(parts.seconds, 1),
    }
    # `corpus_tokenizer` has already checked the required tokens.
    vocabulary = vocabulary_of(tokenizer, config.tokenizer, needed=())
    write_manifest(folder, vocabulary, unigram_counts, manifest)


def describe_counts(counts: dict[str, dict[str, int]]) -> str:
    """Returns a line with the numbers of training and held-out documents and tokens, from the field `counts` of a
    manifest."""
    train, held_out = (
        f'{counts[split]["documents"]:,} documents, {counts[split]["tokens"]:,} tokens' for split in SPLITS
    )
    return f'{train} to train on; {held_out} held out'


@dataclasses.dataclass(frozen=True)
class _SourceStatistics:
    """The results of a first reading of a text source: its size, the hash of each document, and the threshold for
    held-out documents."""

    characters: int
    hashes: array.array  # hash of each document, in the order of the source
    threshold: int  # Documents whose hash is below this threshold are held out.
    documents: Callable[[], Iterable[str]]  # yields all documents; reads them from memory if the source is small

    def training_documents(self) -> Iterator[str]:
        hashed = zip(self.documents(), self.hashes, strict=True)
        return (text for text, document in hashed if document >= self.threshold)


def _scan_source(source: TextSource, held_out: float, progress: Progress) -> _SourceStatistics:
    characters, hashes, kept = 0, array.array('Q'), []
    progress.start('reading')
    for text in source.documents():
        hashes.append(document_hash(text))
        characters += len(text)
        if characters <= KEPT_CHARACTERS:
            kept.append(text)
        progress.advance(len(text))
    if not hashes:
        raise InputError(f'data.source {source.text!r}: no text in it')
    try:
        threshold = held_out_threshold(hashes, held_out)
    except SingleDocumentError as error:
        ways = f'{more_documents_advice(source.text)}, or data.held_out=0 to train without evaluation'
        raise InputError(f'data.source {source.text!r}: {error}; use {ways}') from None
    documents = (lambda: kept) if characters <= KEPT_CHARACTERS else source.documents
    return _SourceStatistics(characters, hashes, threshold, documents)


def _encode_splits(
    folder: Path, config: DataConfig, survey: _SourceStatistics, vocabulary_size: int, progress: Progress
) -> tuple[dict[str, dict[str, int]], np.ndarray, str]:
    """Tokenises and writes both splits; returns their counts, how often each id occurs in the train split, and a hash
    of both splits."""
    progress.start('tokenising', survey.characters)
    train, held_out = (SplitWriter(folder, split, vocabulary_size) for split in SPLITS)
    processes = _worker_count(config.processes, survey.characters)
    for encoded in encode_documents(survey.documents(), str(folder / TOKENIZER), processes):
        writer = held_out if survey.hashes[encoded.document] < survey.threshold else train
        writer.add(encoded.document, encoded.lengths, encoded.ids)
        progress.advance(encoded.characters)
    content = json_sha256([train.digest(), held_out.digest()])
    return {'train': train.close(), 'held_out': held_out.close()}, train.counts, content


def _worker_count(wanted: int, characters: int) -> int:
    if wanted:
        return wanted
    if characters < PARALLEL_CHARACTERS:
        return 1
    return usable_cores()
