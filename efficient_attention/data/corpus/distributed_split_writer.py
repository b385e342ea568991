"""Writes a split of a prepared corpus in parts, on several machines; the files are byte for byte those that
`SplitWriter` writes.

Each document is tokenised separately; the number of its file and its number in that file identify it. Record sizes
decide which records are in a shard, so shards can be written in any order. Index files and digests need one last pass.
"""

import array
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from array_record.python import array_record_module

from efficient_attention.atomic_files import PARTIAL, atomic_file
from efficient_attention.data.corpus.corpus_split_writer import (
    SHARD_BYTES,
    convert_disk_full_error,
    cut_records,
    open_shard_writer,
    save_index,
    section_digest_bytes,
    token_dtype,
)
from efficient_attention.data.corpus.encoding import encode_documents
from efficient_attention.data.corpus.prepared_corpus import shard_path

Place = tuple[int, int]  # location of a document: index of its file, and index of the document in this file
# location of a record: index of its file, of its document in the file, and of the record in the document
RecordPlace = tuple[int, int, int]
COUNTS = 'counts.txt'  # temporary file; one line per split: name, numbers of documents, sentences, records and shards
# temporary file, int64 [sections, 2]: index of the section's document in the source, count of its sentences
SECTIONS = 'sections.npy'


class EncodedDocument(NamedTuple):
    """A tokenised document: the sentence lengths of each section, and the records that are written to a shard."""

    sections: list[np.ndarray]  # int32 [sentences] per section: tokens of each sentence
    records: list[bytes]


class DocumentSizes(NamedTuple):
    """Where a document is, and how large it is: its sentence lengths, and the bytes of each of its records.

    Index files and shards are planned from these sizes.
    """

    place: Place
    sections: list[np.ndarray]  # int32 [sentences] per section: tokens of each sentence
    record_bytes: list[int]


def encode_document(text: str, tokenizer_file: str, vocabulary_size: int) -> EncodedDocument:
    """Tokenises a document and cuts it into records; a document without sentences has no sections and no records."""
    sections, records = [], []
    for encoded in encode_documents([text], tokenizer_file, processes=1):
        if len(encoded.lengths):
            ids = encoded.ids.astype(token_dtype(vocabulary_size))
            sections.append(encoded.lengths)
            records += [ids[record.tokens].tobytes() for record in cut_records(encoded.lengths)]
    return EncodedDocument(sections, records)


def shard_starts(documents: Iterable[tuple[Place, list[int]]], shard_bytes: int = SHARD_BYTES) -> list[RecordPlace]:
    """Plans the shards from the record sizes in bytes of all documents; returns the location of each shard's first
    record."""
    starts: list[RecordPlace] = []
    filled = shard_bytes
    for place, sizes in documents:
        for number, size in enumerate(sizes):
            if filled >= shard_bytes:
                starts.append((*place, number))
                filled = 0
            filled += size
    return starts


def write_shard(folder: Path, split: str, number: int, records: Iterable[bytes]) -> None:
    """Writes a shard file atomically; a repeated call with the same records writes the same file again.

    Raises:
        RunError, InputError: the shard cannot be written.
    """
    with atomic_file(shard_path(folder, split, number)) as partial, convert_disk_full_error():
        writer = open_shard_writer(partial)
        for record in records:
            writer.write(record)
        writer.close()


def write_split_index(
    folder: Path, documents: Iterable[DocumentSizes], starts: Sequence[RecordPlace], first_of_file: Mapping[int, int]
) -> dict[str, int]:
    """Writes the index files of a split and the temporary file SECTIONS; returns the manifest's counts, except the
    number of tokens.

    Args:
        folder: folder of the split.
        documents: documents with at least one sentence each, in order.
        starts: `shard_starts` of the documents.
        first_of_file: file number -> number of its first document in the whole source.
    """
    lengths, sections = array.array('i'), array.array('q')
    document_starts, record_starts, first_records = array.array('q'), array.array('q'), array.array('q')
    beginnings = set(starts)
    for document in documents:
        document_starts.append(len(lengths))
        number = 0
        for section in document.sections:
            sections.extend((first_of_file[document.place[0]] + document.place[1], len(section)))
            for record in cut_records(section):
                if (*document.place, number) in beginnings:
                    first_records.append(len(record_starts))
                record_starts.append(len(lengths) + record.first_sentence)
                number += 1
            lengths.frombytes(np.ascontiguousarray(section, np.intc).tobytes())
    counts = {'documents': len(document_starts), 'sentences': len(lengths)}
    counts |= {'records': len(record_starts), 'shards': len(first_records)}
    document_starts.append(len(lengths))
    first_records.append(len(record_starts))
    record_starts.append(len(lengths))
    named = {'document_starts': document_starts, 'record_starts': record_starts, 'shard_starts': first_records}
    save_index(folder, lengths, named)
    np.save(folder / SECTIONS, np.array(sections, np.int64).reshape(-1, 2), allow_pickle=False)
    return counts


def digest_split(folder: Path, split: str, vocabulary_size: int) -> tuple[str, np.ndarray]:
    """Computes the SHA-256 of a written split, equal to `SplitWriter.digest`, and how often each id occurs.

    Also removes the temporary file SECTIONS, and partial shards that killed processes on any host have left behind.
    """
    for path in (folder / split).glob(PARTIAL):
        path.unlink()
    lengths = np.load(folder / split / 'sentence_lengths.npy')
    content, counts = hashlib.sha256(), np.zeros(vocabulary_size, np.int64)
    records = read_records(folder, split, token_dtype(vocabulary_size))
    first = 0
    for document, sentences in np.load(folder / split / SECTIONS):
        section = lengths[first : first + sentences]
        ids = np.concatenate([next(records) for _ in cut_records(section)])
        content.update(section_digest_bytes(document, section, ids))
        counts += np.bincount(ids, minlength=vocabulary_size)
        first += sentences
    (folder / split / SECTIONS).unlink()
    return content.hexdigest(), counts


def read_records(folder: Path, split: str, dtype: str) -> Iterator[np.ndarray]:
    """Yields the token ids of every record of a split, shard by shard."""
    for number in range(len(np.load(folder / split / 'shard_starts.npy')) - 1):
        reader = array_record_module.ArrayRecordReader(str(shard_path(folder, split, number)))
        for record in range(reader.num_records()):
            yield np.frombuffer(reader.read([record])[0], dtype)
        reader.close()
