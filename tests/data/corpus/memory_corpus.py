"""Prepared corpora in memory for tests; the id of every token says which token of the split it is."""

import types

import numpy as np

from efficient_attention.data.tokenizers.vocabulary import Vocabulary

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
FIRST_ID = 5  # The token number k of a split has the id FIRST_ID + k.


class MemoryCorpus:
    """A stand-in for `CorpusSplit` that holds its documents in memory."""

    def __init__(self, sentence_lengths, document_starts, split='train'):
        self.split = split
        self.sentence_lengths = np.asarray(sentence_lengths, np.int32)
        self.document_starts = np.asarray(document_starts, np.int64)
        self._bounds = np.concatenate([[0], np.cumsum(self.sentence_lengths)])
        self.tokens = np.arange(FIRST_ID, FIRST_ID + self._bounds[-1], dtype=np.int32)

    def __len__(self):
        return len(self.document_starts) - 1

    def sentences(self, document, start=0, stop=None):
        first, end = self.document_starts[document : document + 2].tolist()
        chosen = range(first, end)[start:stop]
        return [self.tokens[self._bounds[i] : self._bounds[i + 1]] for i in chosen]

    def sentence_of(self, ids):
        """Returns the number of the sentence that each id is from, counted over the split."""
        return np.searchsorted(self._bounds, np.asarray(ids) - FIRST_ID, side='right') - 1

    def document_of(self, ids):
        """Returns the number of the document that each id is from."""
        return np.searchsorted(self.document_starts, self.sentence_of(ids), side='right') - 1


def memory_corpus(documents=40, sentences=12, tokens=25, seed=0, split='train'):
    """Returns a corpus with 1 to `sentences` sentences a document and 1 to `tokens` tokens a sentence."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, sentences + 1, documents)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return MemoryCorpus(rng.integers(1, tokens + 1, starts[-1]), starts, split)


def memory_vocabulary(size, continuation=0.3, seed=0):
    """Returns a vocabulary of `size` ids. A random share of them continue a word; ids below FIRST_ID are special."""
    is_continuation = np.random.default_rng(seed).random(size) < continuation
    is_continuation[:FIRST_ID] = False
    return Vocabulary(size, PAD, UNKNOWN, CLS, SEP, MASK, tuple(range(FIRST_ID)), is_continuation)


def memory_prepared(train=None, held_out=None):
    """Returns a stand-in for `PreparedCorpus` with both splits in memory."""
    train = memory_corpus() if train is None else train
    held_out = memory_corpus(documents=9, seed=1, split='held_out') if held_out is None else held_out
    size = FIRST_ID + max(len(train.tokens), len(held_out.tokens))
    return types.SimpleNamespace(train=train, held_out=held_out, vocabulary=memory_vocabulary(size))


def unmask(row):
    """Returns the tokens of a row before masking; `row` may be a row of a batch."""
    tokens = row['tokens'].copy()
    used = row['masked_weights'] > 0
    tokens[row['masked_positions'][used]] = row['masked_tokens'][used]
    return tokens
