"""Opens a prepared corpus, checks its files and reads its sentences; this docstring describes the files.

A prepared corpus is a folder that is written once and never changed:

    manifest.json         source, settings, counts, vocabulary; bytes and SHA-256 of every other file; its own checksum
    tokenizer.json        the tokenizer, as Hugging Face `tokenizers` reads it
    is_continuation.npy   bool [V], see `Vocabulary`
    unigram_counts.npy    int64 [V], counts of each id in the train split
    <split>/              'train' and 'held_out'
        shard-00000.arrayrecord ...  records; a record = ids of consecutive sentences of one document, end to end
        sentence_lengths.npy         int32 [sentences], tokens
        document_starts.npy          int64 [documents + 1], the first sentence of each document
        record_starts.npy            int64 [records + 1], the first sentence of each record
        shard_starts.npy             int64 [shards + 1], the first record of each shard

A record has a few thousand tokens at most, or one longer sentence. So a few sentences of a novel can be read without
the whole novel.
"""

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module

from efficient_attention.data.preparation.cache_folder import (
    TOKENIZER,
    UNIGRAM_COUNTS,
    check_file_checksums,
    load_array,
    one_line,
    read_manifest,
)
from efficient_attention.data.tokenizers.vocabulary import Vocabulary
from efficient_attention.errors import InputError

FORMAT = 1  # version of the folder's format; it is in the fingerprint, so that a new format never reads an old cache
IS_CONTINUATION = 'is_continuation.npy'
SPLITS = ('train', 'held_out')
RANDOM_ACCESS = 'readahead_buffer_size:0,max_parallelism:0'  # options that array_record recommends for reading by index


class CorpusSplit:
    """Reads the sentences of one split of a prepared corpus. Pickling stores only its folder and split; each process
    opens the shards at its first read.

    Attributes:
        split: 'train' or 'held_out'.
        sentence_lengths: int32 [sentences], tokens of every sentence of every document, in order; at least 1.
        document_starts: int64 [documents + 1], document i has sentences document_starts[i]:document_starts[i + 1].
    """

    def __init__(self, folder: Path, split: str) -> None:
        self.split = split
        self._folder = Path(folder)
        self.sentence_lengths = self._load_index('sentence_lengths')
        self.document_starts = self._load_index('document_starts')
        self._record_starts = self._load_index('record_starts')
        self._shard_starts = self._load_index('shard_starts')
        self._token_type = np.dtype(read_manifest(self._folder, FORMAT, 'corpus')['token_type'])
        self._readers: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self.document_starts) - 1

    def __reduce__(self) -> tuple:
        return CorpusSplit, (self._folder, self.split)

    def sentences(self, document: int, start: int = 0, stop: int | None = None) -> list[np.ndarray]:
        """Returns the ids of sentences start:stop of a document, one int32 array per sentence; sentences are counted
        within the document.

        Raises:
            IndexError: there is no such document.
            InputError: the shard of the document is damaged.
        """
        if not 0 <= document < len(self):
            raise IndexError(f'document {document} of {len(self)} ({self.split})')
        first, end = (int(bound) for bound in self.document_starts[document : document + 2])
        chosen = range(first, end)[start:stop]
        if not chosen:
            return []
        first_record, last_record = np.searchsorted(self._record_starts, (chosen[0], chosen[-1]), side='right') - 1
        ids = np.concatenate([self._read_record(record) for record in range(first_record, last_record + 1)])
        read_from = int(self._record_starts[first_record])
        bounds = np.concatenate([[0], np.cumsum(self.sentence_lengths[read_from : chosen[-1] + 1], dtype=np.int64)])
        return [ids[bounds[i - read_from] : bounds[i - read_from + 1]] for i in chosen]

    def _load_index(self, name: str) -> np.ndarray:
        path = self._folder / self.split / f'{name}.npy'
        try:
            return np.load(path, mmap_mode='r', allow_pickle=False)
        except ValueError:  # An empty array cannot be memory-mapped.
            return load_array(path, 'corpus')

    def _read_record(self, record: int) -> np.ndarray:
        shard = int(np.searchsorted(self._shard_starts, record, side='right')) - 1
        try:
            (data,) = self._shard_reader(shard).read([record - int(self._shard_starts[shard])])
        except (IndexError, RuntimeError, ValueError) as error:
            path = shard_path(self._folder, self.split, shard)
            raise InputError(f'{path}: damaged ({one_line(error)}); delete the folder {self._folder}') from error
        return np.frombuffer(data, self._token_type).astype(np.int32)

    def _shard_reader(self, shard: int) -> Any:
        with self._lock:
            key = (os.getpid(), shard)  # A reader has a file position and threads, which do not survive a fork.
            if key not in self._readers:
                path = shard_path(self._folder, self.split, shard)
                self._readers[key] = array_record_module.ArrayRecordReader(str(path), options=RANDOM_ACCESS)
            return self._readers[key]


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedCorpus:
    """An open prepared corpus: its two splits, its vocabulary, and the path of its tokenizer."""

    folder: Path
    manifest: dict
    vocabulary: Vocabulary
    train: CorpusSplit
    held_out: CorpusSplit
    unigram_counts: np.ndarray  # int64 [V]: how often each id occurs in the train split
    fingerprint: str  # SHA-256 over source, tokenizer, settings and the ids themselves
    tokenizer_file: Path


def shard_path(folder: Path, split: str, shard: int) -> Path:
    """Returns the path of a shard file in a prepared corpus, given the split and the shard's number."""
    return Path(folder) / split / f'shard-{shard:05d}.arrayrecord'


def open_corpus(folder: str | Path) -> PreparedCorpus:
    """Opens the prepared corpus in a folder, after it has compared every file with the checksums of the manifest.

    Raises:
        InputError: there is no corpus, or a file is missing or damaged; the message names the file and the remedy.
    """
    folder = Path(folder)
    manifest = read_manifest(folder, FORMAT, 'corpus')
    check_file_checksums(folder, manifest, 'corpus')
    is_continuation = load_array(folder / IS_CONTINUATION, 'corpus')
    numbers = manifest['vocabulary'] | {'special': tuple(manifest['vocabulary']['special'])}
    return PreparedCorpus(
        folder=folder,
        manifest=manifest,
        vocabulary=Vocabulary(**numbers, is_continuation=is_continuation),
        train=CorpusSplit(folder, 'train'),
        held_out=CorpusSplit(folder, 'held_out'),
        unigram_counts=load_array(folder / UNIGRAM_COUNTS, 'corpus'),
        fingerprint=manifest['fingerprint'],
        tokenizer_file=folder / TOKENIZER,
    )
