"""Tests of packing: no token is lost or used twice, excerpts are separate segments, and rows are full."""

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.packing import packed_row, plan_packing
from tests.data.corpus.memory_corpus import CLS, PAD, SEP, MemoryCorpus, memory_corpus, memory_vocabulary

LENGTH = 64


def make_plan(corpus, *, length=LENGTH, short=0.0, seed=0):
    config = DataConfig(length=length, short_sequence_probability=short)
    return plan_packing(corpus, config, np.random.default_rng(seed))


def make_rows(corpus, plan, length=LENGTH):
    vocabulary = memory_vocabulary(5 + len(corpus.tokens))
    return [packed_row(plan, index, corpus, vocabulary, length) for index in range(len(plan))]


def excerpts_of(row):
    """Returns the tokens of each segment of a row, special tokens included."""
    return [row['tokens'][row['segments'] == segment] for segment in range(1, row['segments'].max() + 1)]


@pytest.mark.parametrize('short', [0.0, 0.5])
def test_an_epoch_holds_every_token_once(short):
    corpus = memory_corpus()
    rows = make_rows(corpus, make_plan(corpus, short=short))
    tokens = np.concatenate([row['tokens'] for row in rows])
    assert np.array_equal(np.sort(tokens[tokens > SEP]), corpus.tokens)


def test_rows_are_excerpts_in_order_with_positions_from_0():
    corpus = memory_corpus()
    for row in make_rows(corpus, make_plan(corpus, short=0.2)):
        used = np.count_nonzero(row['segments'])
        assert (row['tokens'][used:] == PAD).all() and not row['positions'][used:].any()
        assert (np.diff(row['segments'][:used]) >= 0).all() and not row['token_types'].any()
        for segment, excerpt in enumerate(excerpts_of(row), start=1):
            assert excerpt[0] == CLS and excerpt[-1] == SEP and (excerpt[1:-1] > SEP).all()
            assert (np.diff(excerpt[1:-1]) == 1).all()  # The tokens are consecutive.
            assert len(set(corpus.document_of(excerpt[1:-1]).tolist())) == 1
            assert np.array_equal(row['positions'][row['segments'] == segment], np.arange(excerpt.size))


def test_documents_are_cut_at_sentence_borders_where_there_are_any():
    corpus = memory_corpus(tokens=LENGTH - 2)  # Each sentence fits into a row.
    bounds = np.concatenate([[0], np.cumsum(corpus.sentence_lengths)]) + 5
    for row in make_rows(corpus, make_plan(corpus, short=0.5)):
        for excerpt in excerpts_of(row):
            assert excerpt[1] in bounds and excerpt[-2] + 1 in bounds


def test_a_sentence_longer_than_a_row_is_cut_anywhere():
    corpus = MemoryCorpus([200, 3], [0, 2])
    rows = make_rows(corpus, make_plan(corpus))
    sizes = sorted(excerpt.size - 2 for row in rows for excerpt in excerpts_of(row))
    assert sizes == [17, 62, 62, 62]  # The remaining 14 tokens and a 3-token sentence share an excerpt.


def test_excerpts_are_as_long_as_they_can_be():
    corpus = MemoryCorpus([20] * 9, [0, 9])
    plan = make_plan(corpus)
    assert plan.excerpts[:, 4].tolist() == [60, 60, 60]


@pytest.mark.parametrize('length', [64, 128, 512])
def test_short_documents_fill_their_rows(length):
    corpus = memory_corpus(documents=3000, sentences=5, tokens=20)
    plan = make_plan(corpus, length=length)
    rows = make_rows(corpus, plan, length)
    rate = np.mean([np.count_nonzero(row['segments']) / length for row in rows])
    print(f'length {length}: {len(rows)} rows, fill rate {rate:.3f}')
    assert rate >= 0.9


def test_another_epoch_shares_rows_otherwise():
    corpus = memory_corpus()
    plans = [make_plan(corpus, seed=seed) for seed in (0, 0, 1)]
    assert np.array_equal(plans[0].excerpts, plans[1].excerpts)
    assert not np.array_equal(plans[0].excerpts, plans[2].excerpts)


def test_documents_of_a_row():
    corpus = MemoryCorpus([10, 10], [0, 1, 1, 2])
    assert make_plan(corpus).documents_of_row(0) == [0, 2]
