"""Examples are pure functions of (seed, epoch, index); epochs, copies and errors."""

import collections
import pickle

import numpy as np
import pytest

from efficient_attention.data.config import DataConfig
from efficient_attention.data.corpus.rows import Examples
from efficient_attention.errors import InputError
from tests.data.corpus.memory_corpus import MemoryCorpus, memory_corpus, memory_prepared, memory_vocabulary, unmask

PAIRS = ('none', 'nsp', 'sop')


def make_examples(corpus=None, *, seed=0, **fields):
    prepared = memory_prepared(corpus)
    return Examples(prepared.train, prepared.vocabulary, DataConfig(**{'length': 64, 'max_masked': 10} | fields), seed)


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize('pairs', PAIRS)
def test_an_example_does_not_depend_on_what_came_before(pairs):
    one, other = make_examples(pairs=pairs), make_examples(pairs=pairs)
    for position in range(5 * one.count):
        one.visit(position)
    assert all(equal(one.visit(position), other.visit(position)) for position in reversed(range(2 * one.count)))


@pytest.mark.parametrize('pairs', PAIRS)
def test_an_epoch_visits_each_example_once(pairs):
    examples = make_examples(pairs=pairs)
    visited = [unmask(examples.visit(position)).tobytes() for position in range(examples.count)]
    planned = [unmask(examples.example(0, index)).tobytes() for index in range(examples.count)]
    assert collections.Counter(visited) == collections.Counter(planned)
    assert visited != planned


def test_epochs_of_another_size_fit_the_first_one_s():
    examples = make_examples(pairs='nsp')
    sizes = [len(examples.plan(epoch)) for epoch in range(6)]
    assert min(sizes) < examples.count < max(sizes)
    for epoch, size in enumerate(sizes):
        rows = [unmask(examples.visit(epoch * examples.count + turn)).tobytes() for turn in range(examples.count)]
        assert len(set(rows)) >= min(size, examples.count) - 2  # a short pair may come up twice by chance


@pytest.mark.parametrize('pairs', PAIRS)
def test_dynamic_epochs_differ_in_pairs_and_masks(pairs):
    examples = make_examples(pairs=pairs)
    first, second = ([examples.example(epoch, index) for index in range(examples.count)] for epoch in (0, 1))
    assert not any(equal(one, other) for one, other in zip(first, second, strict=False))


@pytest.mark.parametrize('pairs', PAIRS)
def test_static_copies_repeat_examples_in_another_order(pairs):
    examples = make_examples(pairs=pairs, static_copies=2)
    count = examples.count
    assert all(equal(examples.example(1, index), examples.example(3, index)) for index in range(len(examples.plan(1))))
    assert not equal(examples.example(0, 0), examples.example(1, 0))
    first, third = (
        [examples.visit(epoch * count + turn)['tokens'].tobytes() for turn in range(count)] for epoch in (0, 2)
    )
    assert first != third and collections.Counter(first) == collections.Counter(third)


def test_seeds_differ():
    assert not equal(make_examples(seed=0).visit(0), make_examples(seed=1).visit(0))
    with pytest.raises(InputError, match='the seed is -1'):
        make_examples(seed=-1)


@pytest.mark.parametrize('pairs', PAIRS)
def test_padding_has_the_arrays_of_an_example_and_no_weight(pairs):
    examples = make_examples(pairs=pairs)
    padding, example = examples.padding(), examples.example(0, 0)
    assert {n: (a.shape, a.dtype) for n, a in padding.items()} == {n: (a.shape, a.dtype) for n, a in example.items()}
    assert not padding['segments'].any() and not padding['masked_weights'].any()
    assert not padding.get('pair_weights', np.zeros(())).any()


def test_examples_pickle_without_their_plans():
    examples = make_examples()
    examples.visit(0)
    copy = pickle.loads(pickle.dumps(examples))
    assert len(pickle.dumps(copy._plans)) < 200
    assert equal(copy.visit(3), examples.visit(3))


def test_an_empty_split_is_refused():
    with pytest.raises(InputError, match='the train split of the corpus is empty'):
        make_examples(MemoryCorpus([], [0]))


class Damaged(MemoryCorpus):
    """A corpus whose document 1 cannot be read."""

    error = InputError('shard-00000: damaged')

    def sentences(self, document, start=0, stop=None):
        if document == 1:
            raise self.error
        return super().sentences(document, start, stop)


@pytest.mark.parametrize('pairs', PAIRS)
def test_an_error_names_documents_and_split(pairs):
    examples = make_examples(Damaged([10] * 30, [0, 10, 20, 30]), pairs=pairs)
    with pytest.raises(InputError, match=r'^train documents \[.*1.*\], epoch 0, example \d+: shard-00000: damaged$'):
        [examples.example(0, index) for index in range(examples.count)]


def test_a_fault_of_ours_stays_one(monkeypatch):
    monkeypatch.setattr(Damaged, 'error', KeyError('x'))
    examples = make_examples(Damaged([10] * 30, [0, 10, 20, 30]))
    with pytest.raises(RuntimeError, match=r'train documents \[.*1.*\]'):
        [examples.example(0, index) for index in range(examples.count)]


@pytest.mark.parametrize('wrong', [-1, 10_000])
def test_an_id_outside_the_vocabulary_is_refused(wrong):
    corpus = memory_corpus(documents=3)
    corpus.tokens = np.full_like(corpus.tokens, wrong)
    examples = Examples(corpus, memory_vocabulary(10_000), DataConfig(), 0)
    with pytest.raises(InputError, match=f'token id {wrong} is not of the vocabulary'):
        examples.example(0, 0)
