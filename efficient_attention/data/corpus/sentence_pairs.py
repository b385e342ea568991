"""Forms the sentence pairs of an epoch, for next-sentence or sentence-order prediction, and makes a row from each pair.

Documents are cut into chunks as in BERT (Devlin et al. 2018, arXiv:1810.04805, and its published code). A chunk takes
sentences until it has at least the target length, then is split at a random sentence border into A and B.

Next sentence ('nsp') follows BERT's rule; label 1 = random B. With probability 1/2, and always when the chunk is a
single sentence, B comes from another document. The unused second half then starts the next chunk. So more than half of
the labels are 1.

Sentence order ('sop', Lan et al. 2019, arXiv:1909.11942): label 1 = swapped, with probability 1/2. Both halves always
come from one chunk. For a chunk of a single sentence, ALBERT's code adds a random B with label 1, so the label partly
depends on topic. Here such a chunk becomes [CLS] A [SEP] with pair weight 0, for only the masked language model.
"""

import dataclasses

import numpy as np

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.prepared_corpus import CorpusSplit
from efficient_attention.data.preparation.held_out_documents import more_documents_advice
from efficient_attention.data.tokenizers.vocabulary import Vocabulary
from efficient_attention.errors import InputError

PAIR_SPECIALS = 3  # special tokens of a row with a pair: [CLS] A [SEP] B [SEP]
LONE_SPECIALS = 2  # [CLS] A [SEP]
SHORTEST_TARGET = 2  # smallest target length in tokens, as in BERT


@dataclasses.dataclass(frozen=True, eq=False)
class PairPlan:
    """Lists the sentence pairs of one epoch of a split, in the order of their documents.

    Attributes:
        spans: int64 [pairs, 2, 3]; for A, then B: document, first sentence, end sentence, counted within the document.
            The spans of swapped pairs are swapped, as in the row. An A without B has an empty second span.
        labels: int32 [pairs], see the module docstring.
    """

    spans: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def documents_of_row(self, index: int) -> list[int]:
        """Returns the indices of the documents from which a pair has sentences."""
        return sorted({document for document, start, stop in self.spans[index].tolist() if start < stop})


def plan_pairs(corpus: CorpusSplit, config: DataConfig, rng: np.random.Generator) -> PairPlan:
    """Plans the pairs of an epoch: cuts every document of a split into random sentence pairs. It reads only sentence
    lengths, not tokens.

    Raises:
        InputError: next-sentence pairs need two documents, and the split has fewer.
    """
    starts_of_documents = np.asarray(corpus.document_starts)
    documents = np.flatnonzero(np.diff(starts_of_documents))  # documents that have at least one sentence
    if config.pairs == 'nsp' and len(documents) < 2:
        raise InputError(too_few_documents_message(corpus.split, len(documents), config))
    walk = _ParallelDocumentWalk(
        tokens_before=cumulative_token_counts(corpus.sentence_lengths),
        starts=starts_of_documents[documents],
        ends=starts_of_documents[documents + 1],
        targets=sample_target_lengths(
            len(documents), config.length - PAIR_SPECIALS, config.short_sequence_probability, rng
        ),
    )
    spans, labels = _next_sentence_pairs(walk, rng) if config.pairs == 'nsp' else _sentence_order_pairs(walk, rng)
    spans[..., 1:] -= walk.starts[spans[..., :1]]
    spans[..., 0] = documents[spans[..., 0]]
    return PairPlan(spans, labels.astype(np.int32))


def too_few_documents_message(split: str, count: int, config: DataConfig) -> str:
    """Returns the error message for a split that has too few documents for next-sentence pairs; the message lists
    remedies."""
    ways = [more_documents_advice(config.source), 'data.pairs=sop']
    if split == 'held_out':
        ways += ['a larger data.held_out', 'data.held_out=0 to train without evaluation']
    return f"data.pairs 'nsp' needs two documents; the {split} split has {count}; use {', or '.join(ways)}"


def cumulative_token_counts(sentence_lengths: np.ndarray) -> np.ndarray:
    """Returns the number of tokens before each sentence of a split, and the total at the end: int64 [sentences + 1]."""
    return np.concatenate([[0], np.cumsum(sentence_lengths, dtype=np.int64)])


def sample_target_lengths(count: int, longest: int, short_probability: float, rng: np.random.Generator) -> np.ndarray:
    """Samples a target length in tokens for each document: a random length from 2 to `longest` for a given share of the
    documents, otherwise `longest`."""
    is_short = rng.random(count) < short_probability
    return np.where(is_short, rng.integers(SHORTEST_TARGET, longest + 1, count), longest)


def pair_row(
    plan: PairPlan, index: int, corpus: CorpusSplit, vocabulary: Vocabulary, length: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns the row of a sentence pair before masking: tokens, segments, token_types, positions [row length];
    lengths, pair_labels, pair_weights [].

    A pair that is too long is cut as in BERT: token by token from the longer half, at a random end.
    """
    first, second = (_read_sentences(corpus, *span) for span in plan.spans[index].tolist())
    specials = PAIR_SPECIALS if second.size else LONE_SPECIALS
    kept = truncated_lengths(first.size, second.size, length - specials)
    first, second = _remove_random_ends(first, kept[0], rng), _remove_random_ends(second, kept[1], rng)
    row = {name: np.zeros(length, np.int32) for name in ('tokens', 'segments', 'token_types', 'positions')}
    middle, used = kept[0] + LONE_SPECIALS, sum(kept) + specials
    tokens = row['tokens']
    tokens[0], tokens[1 : middle - 1] = vocabulary.cls, first
    tokens[middle : used - 1] = second
    tokens[[middle - 1, used - 1]] = vocabulary.sep
    tokens[used:] = vocabulary.pad
    row['segments'][:used], row['lengths'] = 1, np.array(used, np.int32)
    row['token_types'][middle:used] = 1
    row['positions'][:used] = np.arange(used)
    row['pair_labels'] = np.array(plan.labels[index], np.int32)
    row['pair_weights'] = np.array(second.size > 0, np.float32)
    return row


@dataclasses.dataclass(frozen=True, eq=False)
class _ParallelDocumentWalk:
    """The documents of a split while they are cut into chunks; each NumPy step cuts one chunk from every document in
    parallel."""

    tokens_before: np.ndarray  # int64 [sentences + 1]: number of tokens before each sentence
    starts: np.ndarray  # [documents]: index of the first sentence of each document, counted over the split
    ends: np.ndarray  # [documents]
    targets: np.ndarray  # [documents]: target length of a chunk, in tokens

    def chunk_end(self, start: np.ndarray, tokens: np.ndarray, document: np.ndarray) -> np.ndarray:
        """Returns the end of the shortest run of sentences that has at least `tokens` tokens, or the end of the
        document."""
        enough = np.searchsorted(self.tokens_before, self.tokens_before[start] + tokens)
        return np.minimum(enough, self.ends[document])


def _next_sentence_pairs(walk: _ParallelDocumentWalk, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Forms next-sentence pairs. Returns (document, first sentence, end sentence) of segments A and B, [pairs, 2, 3],
    and whether B is random, [pairs].

    Documents and sentences are counted over all non-empty documents.
    """
    spans, labels = [], []
    document, start = np.arange(len(walk.starts)), walk.starts
    while document.size:
        split_at, coin, other, other_start = rng.random((4, document.size))
        stop = walk.chunk_end(start, walk.targets[document], document)
        middle = _split_chunk(start, stop, split_at)
        is_random = (stop - start == 1) | (coin < 0.5)
        random_b = _random_second_segment(walk, (document, start, middle), other, other_start)
        actual_b = np.stack([document, middle, stop], axis=-1)
        second = np.where(is_random[:, None], random_b, actual_b)
        spans.append(np.stack([np.stack([document, start, middle], axis=-1), second], axis=1))
        labels.append(is_random)
        document, start = _unfinished_documents(walk, document, np.where(is_random, middle, stop))
    return _sort_pairs(spans, labels)


def _sentence_order_pairs(walk: _ParallelDocumentWalk, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Forms sentence-order pairs. Returns (document, first sentence, end sentence) of segments A and B, [pairs, 2, 3],
    and whether A and B are swapped, [pairs].

    Documents and sentences are counted over all non-empty documents.
    """
    spans, labels = [], []
    document, start = np.arange(len(walk.starts)), walk.starts
    while document.size:
        split_at, coin = rng.random((2, document.size))
        stop = walk.chunk_end(start, walk.targets[document], document)
        middle = _split_chunk(start, stop, split_at)
        spans.append(np.stack([document, start, middle, document, middle, stop], axis=-1).reshape(-1, 2, 3))
        labels.append((middle < stop) & (coin < 0.5))
        document, start = _unfinished_documents(walk, document, stop)
    all_spans, all_labels = _sort_pairs(spans, labels)
    all_spans[all_labels] = all_spans[all_labels, ::-1]
    return all_spans, all_labels


def _split_chunk(start: np.ndarray, stop: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Returns a random sentence of the chunk, other than the first, at which segment B starts. For a chunk of one
    sentence, returns the end of the chunk."""
    return start + 1 + (uniform * (stop - start - 1)).astype(np.int64)


def _random_second_segment(
    walk: _ParallelDocumentWalk,
    first: tuple[np.ndarray, np.ndarray, np.ndarray],
    other: np.ndarray,
    other_start: np.ndarray,
) -> np.ndarray:
    """Samples a segment B from another document for each segment A: (document, first sentence, end sentence), [pairs,
    3]. B ends where the pair reaches its target length."""
    document, start, middle = first
    chosen = (other * (len(walk.starts) - 1)).astype(np.int64)
    chosen += chosen >= document
    second_start = walk.starts[chosen]
    second_start = second_start + (other_start * (walk.ends[chosen] - second_start)).astype(np.int64)
    room = walk.targets[document] - (walk.tokens_before[middle] - walk.tokens_before[start])
    return np.stack([chosen, second_start, walk.chunk_end(second_start, np.maximum(room, 1), chosen)], axis=-1)


def _unfinished_documents(
    walk: _ParallelDocumentWalk, document: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the documents that still have sentences, and the next sentence of each."""
    is_left = start < walk.ends[document]
    return document[is_left], start[is_left]


def _sort_pairs(spans: list[np.ndarray], labels: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Joins the pairs of all steps and sorts them by the first sentence of segment A, so that neighbouring rows read
    neighbouring records."""
    all_spans, all_labels = np.concatenate(spans), np.concatenate(labels)
    order = np.argsort(all_spans[:, 0, 1], kind='stable')
    return all_spans[order], all_labels[order]


def _read_sentences(corpus: CorpusSplit, document: int, start: int, stop: int) -> np.ndarray:
    sentences = corpus.sentences(document, start, stop) if start < stop else []
    return np.concatenate(sentences) if sentences else np.zeros(0, np.int32)


def _remove_random_ends(ids: np.ndarray, keep: int, rng: np.random.Generator) -> np.ndarray:
    """Cuts a text to `keep` tokens; each removed token is taken from the front or the back with equal probability."""
    if ids.size == keep:
        return ids
    front = int(rng.binomial(ids.size - keep, 0.5))
    return ids[front : front + keep]


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how many tokens of two texts remain if at most `room` tokens fit; the longer text is cut first, and of
    equal texts the second.

    The rule of BERT's code (`_truncate_seq_pair`), without its loop.
    """
    kept = min(second, max(room // 2, room - first))
    return min(first, room - kept), kept
