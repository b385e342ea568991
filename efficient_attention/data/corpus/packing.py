"""Packs excerpts of documents into full rows, for pretraining without sentence pairs.

Documents are cut into excerpts that fit a row, at sentence borders where possible. Every excerpt becomes [CLS] excerpt
[SEP] and a separate segment (1, 2, ... in the row), with positions from 0. Attention and losses that respect segments
never cross excerpts. Every token of every document is in exactly one excerpt.

For a random share of the documents, an excerpt ends with the first sentence that reaches a random target, as in BERT's
sentence pairs. Such short excerpts also fill gaps that longer excerpts leave.
"""

import dataclasses

import numpy as np

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.prepared_corpus import CorpusSplit
from efficient_attention.data.corpus.sentence_pairs import cumulative_token_counts, sample_target_lengths
from efficient_attention.data.tokenizers.vocabulary import Vocabulary

EXCERPT_SPECIALS = 2  # number of special tokens per excerpt: [CLS] before it and [SEP] after it


@dataclasses.dataclass(frozen=True, eq=False)
class PackingPlan:
    """Lists which excerpts are in each packed row of one epoch of a split.

    Attributes:
        excerpts: int64 [excerpts, 5], row by row: document, first and end sentence (counted within the document),
            tokens to skip in the first sentence, tokens of the excerpt.
        row_starts: int64 [rows + 1]; row i has excerpts row_starts[i]:row_starts[i + 1].
    """

    excerpts: np.ndarray
    row_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def documents_of_row(self, index: int) -> list[int]:
        """Returns the indices of the documents from which a row has excerpts."""
        return sorted(set(self.row(index)[:, 0].tolist()))

    def row(self, index: int) -> np.ndarray:
        """Returns the excerpts of a row, int64 [excerpts, 5]; `PackingPlan` lists the columns."""
        start, stop = self.row_starts[index : index + 2].tolist()
        return self.excerpts[start:stop]


def plan_packing(corpus: CorpusSplit, config: DataConfig, rng: np.random.Generator) -> PackingPlan:
    """Plans the rows of an epoch: cuts all documents of a split into excerpts and packs them in random order. It reads
    only sentence lengths, not tokens."""
    before = cumulative_token_counts(corpus.sentence_lengths)
    document_starts = np.asarray(corpus.document_starts)
    longest = config.length - EXCERPT_SPECIALS
    document, start, stop = cut_excerpts(before, document_starts, longest, config.short_sequence_probability, rng)
    first = np.searchsorted(before, start, side='right') - 1
    end = np.searchsorted(before, stop)
    offset = document_starts[document]
    excerpts = np.stack([document, first - offset, end - offset, start - before[first], stop - start], axis=-1)
    excerpts = excerpts[rng.permutation(len(excerpts))]
    rows = _choose_rows(excerpts[:, 4] + EXCERPT_SPECIALS, config.length)
    order = np.argsort(rows, kind='stable')
    row_starts = np.concatenate([[0], np.cumsum(np.bincount(rows))])
    return PackingPlan(excerpts[order], row_starts)


def packed_row(
    plan: PackingPlan, index: int, corpus: CorpusSplit, vocabulary: Vocabulary, length: int
) -> dict[str, np.ndarray]:
    """Returns a packed row before masking: tokens, segments, token_types (all 0) and positions, each int32 [row
    length]."""
    row = {name: np.zeros(length, np.int32) for name in ('tokens', 'segments', 'token_types', 'positions')}
    row['tokens'][:] = vocabulary.pad
    at = 0
    for segment, (document, first, end, skip, tokens) in enumerate(plan.row(index).tolist(), start=1):
        stop = at + tokens + EXCERPT_SPECIALS
        row['tokens'][at] = vocabulary.cls
        row['tokens'][at + 1 : stop - 1] = np.concatenate(corpus.sentences(document, first, end))[skip : skip + tokens]
        row['tokens'][stop - 1] = vocabulary.sep
        row['segments'][at:stop] = segment
        row['positions'][at:stop] = np.arange(stop - at)
        at = stop
    return row


def cut_excerpts(
    before: np.ndarray, document_starts: np.ndarray, longest: int, short_probability: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts all documents into excerpts in parallel; returns document, start and end token of each excerpt, with tokens
    counted over the split.

    Args:
        before: `cumulative_token_counts` of the split.
        document_starts: first sentence of each document.
        longest: most tokens of an excerpt.
        short_probability: share of the documents whose excerpts end with the sentence that reaches a random target.
        rng: source of these targets.
    """
    documents = np.flatnonzero(np.diff(document_starts))
    targets = sample_target_lengths(len(documents), longest, short_probability, rng)
    start, ends = before[document_starts[documents]], before[document_starts[documents + 1]]
    excerpts = [np.zeros((3, 0), np.int64)]
    while documents.size:
        stop = np.minimum(_excerpt_end(before, start, targets, longest), ends)
        excerpts.append(np.stack([documents, start, stop]))
        is_left = stop < ends
        documents, start, ends, targets = (array[is_left] for array in (documents, stop, ends, targets))
    document, first, end = np.concatenate(excerpts, axis=1)
    return document, first, end


def _excerpt_end(before: np.ndarray, start: np.ndarray, targets: np.ndarray, longest: int) -> np.ndarray:
    """Returns where an excerpt ends: at the first sentence border at or after the target length. If the excerpt is then
    too long, it ends at the last border that fits, or else within a sentence."""
    reached = before[np.minimum(np.searchsorted(before, start + targets), len(before) - 1)]
    fitting = before[np.searchsorted(before, start + longest, side='right') - 1]
    return np.where(reached <= start + longest, reached, np.where(fitting > start, fitting, start + longest))


def _choose_rows(sizes: np.ndarray, length: int) -> np.ndarray:
    """Assigns a row to each excerpt: the fullest row with enough free positions (best fit), or a new row.

    The result is int64 [excerpts]. Rows with r free positions wait in stack r. Bit r of `waiting` says whether stack r
    has any rows, so each excerpt finds its row in constant time.
    """
    stacks: list[list[int]] = [[] for _ in range(length + 1)]
    waiting, count, rows = 0, 0, []
    for size in sizes.tolist():
        fitting = waiting >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = stacks[room].pop()
            if not stacks[room]:
                waiting ^= 1 << room
        else:
            room, row, count = length, count, count + 1
        rows.append(row)
        stacks[room - size].append(row)
        waiting |= 1 << (room - size)
    return np.array(rows, np.int64)
