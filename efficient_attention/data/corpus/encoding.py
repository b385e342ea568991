"""Splits documents into sentences and tokenises them, in one or several processes; the results always come in the order
of the documents."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from efficient_attention.data.corpus.sentence_splitting import split_sentences
from efficient_attention.data.preparation.worker_processes import map_in_processes
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import (
    SECTION,
    cut_at_blank_lines,
    make_plain_text_tokenizer,
)

BATCH = 2**19  # characters of text per task of a worker process
FAULT = (
    'a process that prepares the corpus died (out of memory, or a script without a __main__ guard);'
    ' data.processes=1 starts no processes'
)


@dataclasses.dataclass(frozen=True)
class EncodedSection:
    """The tokenised sentences of one section of a document; long documents are cut into sections."""

    document: int  # index of the document in the source
    lengths: np.ndarray  # int32 [sentences]: tokens per sentence, at least 1
    ids: np.ndarray  # uint32 [tokens]: the ids of all sentences, concatenated
    characters: int  # number of characters in the section


def encode_documents(
    texts: Iterable[str], tokenizer_file: str, processes: int, *, batch: int = BATCH, section: int = SECTION
) -> Iterator[EncodedSection]:
    """Yields the tokenised sections of all documents, in order.

    Args:
        texts: the documents.
        tokenizer_file: a tokenizer.json.
        processes: number of processes; 1 = this process, with the tokenizer library's own threads.
        batch: characters per task.
        section: characters after which a document is cut at the next blank line.

    Raises:
        InputError: one of the processes died.
    """
    batches = _section_batches(texts, batch, section)
    encode = functools.partial(_encode_sections, tokenizer_file=tokenizer_file)
    results = map_in_processes(encode, batches, processes, fault=FAULT) if processes > 1 else map(encode, batches)
    for encoded in results:
        yield from encoded


_Batch = list[tuple[int, str]]


def _section_batches(texts: Iterable[str], most: int, section_characters: int) -> Iterator[_Batch]:
    batch: _Batch = []
    characters = 0
    for document, text in enumerate(texts):
        for section in cut_at_blank_lines(text, section_characters):
            batch.append((document, section))
            characters += len(section)
            if characters >= most:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def _encode_sections(batch: _Batch, tokenizer_file: str) -> list[EncodedSection]:
    encode = _sentence_encoder(tokenizer_file)
    sentences = [split_sentences(text) for _, text in batch]
    lengths, ids = encode(list(itertools.chain.from_iterable(sentences)))
    section_ends = np.cumsum([len(group) for group in sentences])
    token_ends = np.concatenate([[0], np.cumsum(lengths)])[section_ends]
    section_lengths = np.split(lengths, section_ends[:-1])
    section_ids = np.split(ids, token_ends[:-1])
    return [
        EncodedSection(document, lengths[lengths > 0], ids, len(text))
        for (document, text), lengths, ids in zip(batch, section_lengths, section_ids, strict=True)
    ]


@functools.cache
def _sentence_encoder(tokenizer_file: str) -> Callable[[list[str]], tuple[np.ndarray, np.ndarray]]:
    reader = make_plain_text_tokenizer(load_tokenizer(tokenizer_file, lowercase=True))

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = [encoding.ids for encoding in reader.encode_batch_fast(sentences, add_special_tokens=False)]
        lengths = np.fromiter(map(len, encodings), np.int32, len(encodings))
        ids = np.fromiter(itertools.chain.from_iterable(encodings), np.uint32, int(lengths.sum()))
        return lengths, ids

    return encode
