"""Documents as sentences of ids, computed in this process or in several, always in the same order."""

import collections
import dataclasses
import functools
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from efficient_attention.data.blank_lines import SECTION, cut_at_blank_lines
from efficient_attention.data.corpus.sentence_splitting import split_sentences
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.data.worker_process import follow_parent
from efficient_attention.errors import InputError

BATCH = 2**19  # characters of one task


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The sentences of one section of a document."""

    document: int  # which document of the source it belongs to
    lengths: np.ndarray  # int32 [sentences], tokens; none is 0
    ids: np.ndarray  # uint32 [tokens], the sentences end to end
    characters: int  # of the text


def encode_documents(
    texts: Iterable[str], tokenizer_file: str, processes: int, *, batch: int = BATCH, section: int = SECTION
) -> Iterator[Encoded]:
    """Every section of every document, in order, tokenised.

    Args:
        texts: the documents.
        tokenizer_file: a tokenizer.json.
        processes: 1 works in this process, on as many threads as the tokenizer library likes.
        batch: characters of one task.
        section: characters after which a document is cut at the next blank line.

    Raises:
        InputError: one of the processes died.
    """
    batches = _batches(texts, batch, section)
    results = _in_processes(batches, tokenizer_file, processes) if processes > 1 else _here(batches, tokenizer_file)
    for encoded in results:
        yield from encoded


_Batch = list[tuple[int, str]]


def _batches(texts: Iterable[str], most: int, section_characters: int) -> Iterator[_Batch]:
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


def _here(batches: Iterator[_Batch], tokenizer_file: str) -> Iterator[list[Encoded]]:
    for batch in batches:
        yield _encode(batch, tokenizer_file)


def _in_processes(batches: Iterator[_Batch], tokenizer_file: str, processes: int) -> Iterator[list[Encoded]]:
    context = multiprocessing.get_context('spawn')  # a fork would copy JAX's threads in whatever state they are
    waiting: collections.deque[Future[list[Encoded]]] = collections.deque()
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker)
    try:
        for batch in batches:
            waiting.append(pool.submit(_encode, batch, tokenizer_file))
            if len(waiting) >= 4 * processes:  # the reader waits, so that no more than this lies in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise InputError(
            'a process that prepares the corpus died (out of memory, or a script without a __main__ guard);'
            ' data.processes=1 works without'
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # the processes are the parallelism
    follow_parent()


def _encode(batch: _Batch, tokenizer_file: str) -> list[Encoded]:
    encode = _encoder(tokenizer_file)
    sentences = [split_sentences(text) for _, text in batch]
    lengths, ids = encode(list(itertools.chain.from_iterable(sentences)))
    section_ends = np.cumsum([len(group) for group in sentences])
    token_ends = np.concatenate([[0], np.cumsum(lengths)])[section_ends]
    section_lengths = np.split(lengths, section_ends[:-1])
    section_ids = np.split(ids, token_ends[:-1])
    return [
        Encoded(document, lengths[lengths > 0], ids, len(text))
        for (document, text), lengths, ids in zip(batch, section_lengths, section_ids, strict=True)
    ]


@functools.cache
def _encoder(tokenizer_file: str) -> Callable[[list[str]], tuple[np.ndarray, np.ndarray]]:
    tokenizer = load_tokenizer(tokenizer_file, lowercase=True)
    tokenizer.encode_special_tokens = True  # '[SEP]' in a text is text
    vocabulary = vocabulary_of(tokenizer, tokenizer_file, needed=())
    mended = np.arange(vocabulary.size, dtype=np.uint32)
    if vocabulary.unknown >= 0:  # a unigram model may still find '<pad>' among its pieces
        mended[list(vocabulary.special)] = vocabulary.unknown

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = [encoding.ids for encoding in tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
        lengths = np.fromiter(map(len, encodings), np.int32, len(encodings))
        ids = np.fromiter(itertools.chain.from_iterable(encodings), np.uint32, int(lengths.sum()))
        return lengths, mended[ids]

    return encode
