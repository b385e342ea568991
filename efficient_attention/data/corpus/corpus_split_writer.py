"""Writes the files of a prepared corpus: shards of token ids, index files and manifest."""

import array
import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module

from efficient_attention.data.corpus.prepared_corpus import IS_CONTINUATION, shard_path
from efficient_attention.data.preparation.cache_folder import (
    MANIFEST,
    UNIGRAM_COUNTS,
    file_sizes_and_checksums,
    manifest_checksum,
    one_line,
)
from efficient_attention.data.tokenizers.vocabulary import Vocabulary

RECORD_TOKENS = 2048
SHARD_BYTES = 2**28


class Record(NamedTuple):
    """A part of a section that is stored as one record of a shard: its first sentence, and the slice of the section's
    tokens."""

    first_sentence: int
    tokens: slice


def cut_records(lengths: np.ndarray, record_tokens: int = RECORD_TOKENS) -> Iterator[Record]:
    """Yields the records of a section, given its sentence lengths; a record ends with the sentence that reaches
    `record_tokens` tokens."""
    ends = np.cumsum(lengths)
    first, written = 0, 0
    while first < len(lengths):
        last = min(int(np.searchsorted(ends, written + record_tokens)), len(lengths) - 1)
        yield Record(first, slice(written, int(ends[last])))
        first, written = last + 1, int(ends[last])


def section_digest_bytes(document: int, lengths: np.ndarray, ids: np.ndarray) -> bytes:
    """Returns the bytes of one section that enter the SHA-256 of its split."""
    numbers = np.array([document, len(lengths), len(ids)], '<i8')
    return numbers.tobytes() + lengths.astype('<i4').tobytes() + ids.astype('<u4').tobytes()


class SplitWriter:
    """Writes the documents of one split, section by section in order, and at the end its index files.

    Args:
        folder: folder of the corpus, in which the folder of the split is made.
        split: name of the split.
        vocabulary_size: all ids are below it.
        record_tokens: a record ends with the first sentence that reaches this many tokens.
        shard_bytes: bytes of ids after which a new shard begins.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        vocabulary_size: int,
        *,
        record_tokens: int = RECORD_TOKENS,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.counts = np.zeros(vocabulary_size, np.int64)  # how often each id was written
        self._content = hashlib.sha256()
        self._folder = folder
        self._split = split
        self._type = token_dtype(vocabulary_size)
        self._lengths = array.array('i')
        self._document_starts = array.array('q')
        self._record_starts = array.array('q')
        self._shard_starts = array.array('q')
        self._document = -1
        self._record_tokens, self._most_shard_bytes = record_tokens, shard_bytes
        # number of bytes in the open shard; it starts at the limit, so that the first record opens a shard
        self._shard_bytes = shard_bytes
        self._writer: Any = None
        (folder / split).mkdir()

    def add(self, document: int, lengths: np.ndarray, ids: np.ndarray) -> None:
        """Appends a section of a document to the split.

        Args:
            document: a number that grows from document to document; a document without sentences writes nothing.
            lengths: int32 [sentences], tokens per sentence, at least 1.
            ids: [tokens], the sentences end to end, each id below the vocabulary's size.
        """
        if not len(lengths):
            return
        if document != self._document:
            self._document_starts.append(len(self._lengths))
            self._document = document
        self.counts += np.bincount(ids, minlength=len(self.counts))
        self._content.update(section_digest_bytes(document, lengths, ids))
        for record in cut_records(lengths, self._record_tokens):
            self._record_starts.append(len(self._lengths) + record.first_sentence)
            self._write_record(ids[record.tokens].astype(self._type).tobytes())
        self._lengths.frombytes(np.ascontiguousarray(lengths, np.intc).tobytes())

    def digest(self) -> str:
        """Returns a SHA-256 over the sentence lengths and ids of all added documents; it does not depend on how they
        are divided into files."""
        return self._content.hexdigest()

    def close(self) -> dict[str, int]:
        """Writes the index files; returns the numbers of documents, sentences, tokens, records and shards for the
        manifest."""
        self._close_shard()
        counts = {
            'documents': len(self._document_starts),
            'sentences': len(self._lengths),
            'tokens': int(self.counts.sum()),
            'records': len(self._record_starts),
            'shards': len(self._shard_starts),
        }
        self._document_starts.append(len(self._lengths))
        self._shard_starts.append(len(self._record_starts))
        self._record_starts.append(len(self._lengths))
        starts = {
            'document_starts': self._document_starts,
            'record_starts': self._record_starts,
            'shard_starts': self._shard_starts,
        }
        save_index(self._folder / self._split, self._lengths, starts)
        return counts

    def _write_record(self, record: bytes) -> None:
        if self._shard_bytes >= self._most_shard_bytes:
            self._close_shard()
            with convert_disk_full_error():
                self._writer = open_shard_writer(shard_path(self._folder, self._split, len(self._shard_starts)))
            self._shard_starts.append(len(self._record_starts) - 1)
            self._shard_bytes = 0
        with convert_disk_full_error():
            self._writer.write(record)
        self._shard_bytes += len(record)

    def _close_shard(self) -> None:
        if self._writer is not None:
            with convert_disk_full_error():
                self._writer.close()


@contextlib.contextmanager
def convert_disk_full_error() -> Iterator[None]:
    """Converts the RuntimeError that array_record raises on a full disk to an OSError, which other writers of files
    raise."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(one_line(error)) from None


def save_index(folder: Path, lengths: Sequence[int], starts: Mapping[str, Sequence[int]]) -> None:
    """Writes the index files of a split: sentence lengths, and the starts of documents, records and shards."""
    np.save(folder / 'sentence_lengths.npy', np.array(lengths, np.int32), allow_pickle=False)
    for name, values in starts.items():
        np.save(folder / f'{name}.npy', np.array(values, np.int64), allow_pickle=False)


def open_shard_writer(path: Path) -> Any:
    """Opens a new ArrayRecord file for writing; its records can later be read one by one."""
    return array_record_module.ArrayRecordWriter(str(path), 'group_size:1')


def token_dtype(vocabulary_size: int) -> str:
    """Returns the NumPy type of token ids on disk: unsigned, little endian, with 16 bits if they suffice, else 32."""
    return '<u2' if vocabulary_size <= 2**16 else '<u4'


def write_manifest(folder: Path, vocabulary: Vocabulary, unigram_counts: np.ndarray, manifest: dict[str, Any]) -> None:
    """Writes the vocabulary files, and a manifest with the checksum of every file."""
    np.save(folder / IS_CONTINUATION, vocabulary.is_continuation, allow_pickle=False)
    np.save(folder / UNIGRAM_COUNTS, unigram_counts, allow_pickle=False)
    numbers = {name: getattr(vocabulary, name) for name in ('size', 'pad', 'unknown', 'cls', 'sep', 'mask', 'special')}
    complete = {
        **manifest,
        'vocabulary': numbers,
        'token_type': token_dtype(vocabulary.size),
        'files': file_sizes_and_checksums(folder),
    }
    complete['checksum'] = manifest_checksum(complete)
    (folder / MANIFEST).write_text(json.dumps(complete, indent=2) + '\n', encoding='utf-8')
