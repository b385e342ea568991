"""Tests that masked rows depend only on (seed, epoch, index), and tests of epochs, static copies and errors."""

import collections
import pickle

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.masked_corpus_rows import MaskedCorpusRows
from efficient_attention.errors import InputError
from tests.data.corpus.memory_corpus import MemoryCorpus, memory_corpus, memory_prepared, memory_vocabulary, unmask

PAIRS = ('none', 'nsp', 'sop')


def make_rows(corpus=None, *, seed=0, **fields):
    prepared = memory_prepared(corpus)
    return MaskedCorpusRows(
        prepared.train, prepared.vocabulary, DataConfig(**{'length': 64, 'max_masked': 10} | fields), seed
    )


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize('pairs', PAIRS)
def test_a_row_does_not_depend_on_what_came_before(pairs):
    one, other = make_rows(pairs=pairs), make_rows(pairs=pairs)
    for position in range(5 * one.count):
        one.training_row(position)
    assert all(
        equal(one.training_row(position), other.training_row(position)) for position in reversed(range(2 * one.count))
    )


@pytest.mark.parametrize('pairs', PAIRS)
def test_an_epoch_visits_each_row_once(pairs):
    rows = make_rows(pairs=pairs)
    visited = [unmask(rows.training_row(position)).tobytes() for position in range(rows.count)]
    planned = [unmask(rows.row(0, index)).tobytes() for index in range(rows.count)]
    assert collections.Counter(visited) == collections.Counter(planned)
    assert visited != planned


def test_epochs_of_another_size_fit_the_first_one_s():
    rows = make_rows(pairs='nsp')
    sizes = [len(rows.epoch_plan(epoch)) for epoch in range(6)]
    assert min(sizes) < rows.count < max(sizes)
    for epoch, size in enumerate(sizes):
        found = [unmask(rows.training_row(epoch * rows.count + turn)).tobytes() for turn in range(rows.count)]
        assert len(set(found)) >= min(size, rows.count) - 2  # Short pairs may repeat by chance.


@pytest.mark.parametrize('pairs', PAIRS)
def test_dynamic_epochs_differ_in_pairs_and_masks(pairs):
    rows = make_rows(pairs=pairs)
    first, second = ([rows.row(epoch, index) for index in range(rows.count)] for epoch in (0, 1))
    assert not any(equal(one, other) for one, other in zip(first, second, strict=False))


@pytest.mark.parametrize('pairs', PAIRS)
def test_static_copies_repeat_rows_in_another_order(pairs):
    rows = make_rows(pairs=pairs, static_copies=2)
    count = rows.count
    assert all(equal(rows.row(1, index), rows.row(3, index)) for index in range(len(rows.epoch_plan(1))))
    assert not equal(rows.row(0, 0), rows.row(1, 0))
    first, third = (
        [rows.training_row(epoch * count + turn)['tokens'].tobytes() for turn in range(count)] for epoch in (0, 2)
    )
    assert first != third and collections.Counter(first) == collections.Counter(third)


def test_seeds_differ():
    assert not equal(make_rows(seed=0).training_row(0), make_rows(seed=1).training_row(0))
    with pytest.raises(InputError, match='the seed is -1'):
        make_rows(seed=-1)


@pytest.mark.parametrize('pairs', PAIRS)
def test_padding_has_the_arrays_of_a_row_and_no_weight(pairs):
    rows = make_rows(pairs=pairs)
    padding, row = rows.padding_row(), rows.row(0, 0)
    assert {n: (a.shape, a.dtype) for n, a in padding.items()} == {n: (a.shape, a.dtype) for n, a in row.items()}
    assert not padding['segments'].any() and not padding['masked_weights'].any()
    assert not padding.get('pair_weights', np.zeros(())).any()


def test_rows_pickle_without_their_plans():
    rows = make_rows()
    rows.training_row(0)
    copy = pickle.loads(pickle.dumps(rows))
    assert len(pickle.dumps(copy._plans)) < 200
    assert equal(copy.training_row(3), rows.training_row(3))


def test_an_empty_split_is_refused():
    with pytest.raises(InputError, match='the train split of the corpus is empty'):
        make_rows(MemoryCorpus([], [0]))


class Damaged(MemoryCorpus):
    """A corpus whose document number 1 cannot be read."""

    error = InputError('shard-00000: damaged')

    def sentences(self, document, start=0, stop=None):
        if document == 1:
            raise self.error
        return super().sentences(document, start, stop)


@pytest.mark.parametrize('pairs', PAIRS)
def test_an_error_names_documents_and_split(pairs):
    rows = make_rows(Damaged([10] * 30, [0, 10, 20, 30]), pairs=pairs)
    with pytest.raises(InputError, match=r'^train documents \[.*1.*\], epoch 0, row \d+: shard-00000: damaged$'):
        [rows.row(0, index) for index in range(rows.count)]


def test_a_fault_of_ours_stays_one(monkeypatch):
    monkeypatch.setattr(Damaged, 'error', KeyError('x'))
    rows = make_rows(Damaged([10] * 30, [0, 10, 20, 30]))
    with pytest.raises(RuntimeError, match=r'train documents \[.*1.*\]'):
        [rows.row(0, index) for index in range(rows.count)]


@pytest.mark.parametrize('wrong', [-1, 10_000])
def test_an_id_outside_the_vocabulary_is_refused(wrong):
    corpus = memory_corpus(documents=3)
    corpus.tokens = np.full_like(corpus.tokens, wrong)
    rows = MaskedCorpusRows(corpus, memory_vocabulary(10_000), DataConfig(), 0)
    with pytest.raises(InputError, match=f'token id {wrong} is not in the vocabulary'):
        rows.row(0, 0)
