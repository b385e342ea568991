"""Tests of sentence pairs: every sentence is used, labels are correct, and their balance follows from the rule."""

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.sentence_pairs import pair_row, plan_pairs, sample_target_lengths
from efficient_attention.errors import InputError
from tests.data.corpus.memory_corpus import CLS, PAD, SEP, MemoryCorpus, memory_corpus, memory_vocabulary

LENGTH = 64


def make_plan(corpus, pairs, *, short=0.0, length=LENGTH, seed=0):
    config = DataConfig(pairs=pairs, length=length, short_sequence_probability=short)
    return plan_pairs(corpus, config, np.random.default_rng(seed))


def in_split(corpus, plan):
    """Returns the spans with sentences counted over the split, as int64 [pairs, 2, 2]."""
    return plan.spans[..., 1:] + corpus.document_starts[plan.spans[..., :1]]


def chunks_by_hand(corpus, target):
    """Returns (first sentence, end sentence) of every chunk of BERT's greedy cut, counted over the split."""
    chunks = []
    for first, end in zip(corpus.document_starts[:-1], corpus.document_starts[1:], strict=True):
        start, tokens = first, 0
        for sentence in range(first, end):
            tokens += corpus.sentence_lengths[sentence]
            if tokens >= target or sentence == end - 1:
                chunks.append((start, sentence + 1))
                start, tokens = sentence + 1, 0
    return chunks


def within(count, trials, probability):
    """Returns whether a count is within four standard deviations of its binomial mean."""
    return abs(count - trials * probability) <= 4 * np.sqrt(trials * probability * (1 - probability))


@pytest.mark.parametrize('short', [0.0, 0.5])
def test_sentence_order_uses_every_sentence_once(short):
    corpus = memory_corpus()
    spans = in_split(corpus, make_plan(corpus, 'sop', short=short)).reshape(-1, 2)
    used = np.concatenate([np.arange(start, stop) for start, stop in spans])
    assert np.array_equal(np.sort(used), np.arange(len(corpus.sentence_lengths)))


@pytest.mark.parametrize('short', [0.0, 0.5])
def test_next_sentence_uses_every_sentence_once_as_a_or_true_b(short):
    corpus = memory_corpus()
    plan = make_plan(corpus, 'nsp', short=short)
    spans = in_split(corpus, plan)
    actual = [*spans[:, 0], *spans[plan.labels == 0, 1]]
    used = np.concatenate([np.arange(start, stop) for start, stop in actual])
    assert np.array_equal(np.sort(used), np.arange(len(corpus.sentence_lengths)))


def test_chunks_are_the_greedy_ones_of_bert():
    corpus = memory_corpus()
    spans = in_split(corpus, make_plan(corpus, 'sop'))
    chunks = sorted((span[:, 0].min(), span[:, 1].max()) for span in spans)
    assert chunks == chunks_by_hand(corpus, LENGTH - 3)


def test_next_sentence_balance_is_half_plus_half_the_lone_chunks():
    corpus = memory_corpus(documents=3000)
    plan = make_plan(corpus, 'nsp')
    spans = in_split(corpus, plan)
    before = np.concatenate([[0], np.cumsum(corpus.sentence_lengths)])
    reach = np.searchsorted(before, before[spans[:, 0, 0]] + LENGTH - 3)
    chunk_end = np.minimum(reach, corpus.document_starts[plan.spans[:, 0, 0] + 1])
    is_lone = chunk_end - spans[:, 0, 0] == 1
    print(f'{len(plan)} pairs: {is_lone.mean():.3f} lone chunks, {plan.labels.mean():.3f} random')
    assert plan.labels[is_lone].all()
    assert within(plan.labels[~is_lone].sum(), (~is_lone).sum(), 0.5)
    assert is_lone.mean() > 0.05
    assert plan.labels.mean() == pytest.approx(0.5 + is_lone.mean() / 2, abs=0.02)


def test_next_sentence_labels_mean_what_they_say():
    corpus = memory_corpus()
    plan = make_plan(corpus, 'nsp')
    (first, second), is_random = np.moveaxis(plan.spans, 1, 0), plan.labels == 1
    assert (first[~is_random, 0] == second[~is_random, 0]).all()
    assert (first[~is_random, 2] == second[~is_random, 1]).all()
    assert (first[is_random, 0] != second[is_random, 0]).all()
    assert (second[:, 1] < second[:, 2]).all()


def test_random_sentences_are_no_more_than_the_pair_needs():
    corpus = memory_corpus()
    plan = make_plan(corpus, 'nsp')
    lengths = corpus.sentence_lengths
    for first, second in in_split(corpus, plan)[plan.labels == 1]:
        room = max(1, LENGTH - 3 - lengths[slice(*first)].sum())
        is_document_end = second[1] in corpus.document_starts
        assert is_document_end or lengths[slice(*second)].sum() >= room
        assert lengths[second[0] : second[1] - 1].sum() < room


def test_random_documents_are_all_others_alike():
    corpus = MemoryCorpus([9] * 40_000, np.arange(5) * 10_000)
    plan = make_plan(corpus, 'nsp')
    chosen = plan.spans[(plan.labels == 1) & (plan.spans[:, 0, 0] == 2), 1, 0]
    counts = np.bincount(chosen, minlength=4)
    assert counts[2] == 0
    assert all(within(counts[document], len(chosen), 1 / 3) for document in (0, 1, 3))


def test_sentence_order_is_balanced_and_stays_in_its_document():
    corpus = memory_corpus(documents=3000)
    plan = make_plan(corpus, 'sop')
    has_second = plan.spans[:, 1, 1] < plan.spans[:, 1, 2]
    print(f'{len(plan)} chunks: {1 - has_second.mean():.3f} lone, {plan.labels[has_second].mean():.3f} swapped')
    assert within(plan.labels[has_second].sum(), has_second.sum(), 0.5)
    assert not plan.labels[~has_second].any()
    assert (plan.spans[:, 0, 0] == plan.spans[:, 1, 0]).all()


def test_swapped_halves_are_consecutive_in_the_document():
    plan = make_plan(memory_corpus(), 'sop')
    (first, second), is_swapped = np.moveaxis(plan.spans, 1, 0), plan.labels == 1
    assert is_swapped.any()
    assert (second[is_swapped, 2] == first[is_swapped, 1]).all()
    assert (first[~is_swapped, 2] == second[~is_swapped, 1]).all()


def test_chunks_are_split_at_every_border_alike():
    corpus = MemoryCorpus([10] * 70_000, np.arange(10_001) * 7)
    plan = make_plan(corpus, 'sop', length=256)
    first = np.where(plan.labels == 1, plan.spans[:, 1, 2], plan.spans[:, 0, 2])
    counts = np.bincount(first, minlength=7)
    assert counts[0] == 0
    assert all(within(count, 10_000, 1 / 6) for count in counts[1:])


def test_targets_are_short_with_the_given_probability_and_then_uniform():
    targets = sample_target_lengths(100_000, 61, 0.1, np.random.default_rng(0))
    assert targets.min() == 2 and targets.max() == 61
    counts = np.bincount(targets)
    assert within(counts[61], 100_000, 0.9 + 0.1 / 60)
    assert all(within(count, 100_000, 0.1 / 60) for count in counts[2:61])


@pytest.mark.parametrize(
    'split, source, ways',
    [
        ('train', 'stdlib', 'more documents, or data.pairs=sop'),
        (
            'held_out',
            'text:a.txt,b.txt',
            "data.source='text:a.txt,b.txt#paragraphs' (blank lines separate documents), or data.pairs=sop, "
            'or a larger data.held_out, or data.held_out=0 to train without evaluation',
        ),
    ],
)
def test_next_sentence_needs_two_documents(split, source, ways):
    config = DataConfig(pairs='nsp', source=source)
    with pytest.raises(InputError) as refusal:
        plan_pairs(MemoryCorpus([5, 5], [0, 2, 2], split), config, np.random.default_rng(0))
    line = f"data.pairs 'nsp' needs two documents; the {split} split has 1; use {ways}"
    assert str(refusal.value) == line


def test_documents_without_sentences_are_skipped():
    corpus = MemoryCorpus([40, 40, 40, 40], [0, 0, 2, 2, 4, 4])
    for pairs in ('nsp', 'sop'):
        assert set(make_plan(corpus, pairs).spans[..., 0].ravel().tolist()) == {1, 3}


def make_row(corpus, plan, index, length=LENGTH, seed=0):
    vocabulary = memory_vocabulary(5 + len(corpus.tokens))
    return pair_row(plan, index, corpus, vocabulary, length, np.random.default_rng(seed))


@pytest.mark.parametrize('pairs', ['nsp', 'sop'])
def test_rows_hold_their_halves_in_order(pairs):
    corpus = memory_corpus()
    plan = make_plan(corpus, pairs, short=0.3)
    for index in range(len(plan)):
        row = make_row(corpus, plan, index)
        used = np.count_nonzero(row['segments'])
        borders = np.flatnonzero(row['tokens'] == SEP)
        assert row['tokens'][0] == CLS and borders[-1] == used - 1
        assert (row['tokens'][used:] == PAD).all() and (row['segments'][:used] == 1).all()
        assert np.array_equal(row['positions'], np.r_[np.arange(used), np.zeros(LENGTH - used)])
        assert np.array_equal(np.flatnonzero(row['token_types']), np.arange(borders[0] + 1, used))
        for half, span in zip(np.split(row['tokens'][1:used], borders[:-1]), plan.spans[index], strict=False):
            ids = half[half != SEP]
            assert ids.size and (np.diff(ids) == 1).all()  # The ids are consecutive in the document.
            sentences = corpus.sentence_of(ids) - corpus.document_starts[span[0]]
            assert (sentences >= span[1]).all() and (sentences < span[2]).all()
        assert len(borders) == 1 + (row['pair_weights'] == 1)
        assert row['pair_labels'] == plan.labels[index]


def test_one_long_sentence_is_cut_and_stands_alone():
    corpus = MemoryCorpus([500], [0, 1])
    row = make_row(corpus, make_plan(corpus, 'sop'), 0)
    assert row['segments'].all() and row['token_types'].sum() == 0
    assert row['pair_weights'] == 0 and row['pair_labels'] == 0
    assert (np.diff(row['tokens'][1:-1]) == 1).all()


def test_tokens_are_cut_from_front_and_back_alike():
    corpus = MemoryCorpus([500], [0, 1])
    plan = make_plan(corpus, 'sop')
    firsts = [int(make_row(corpus, plan, 0, seed=seed)['tokens'][1]) - 5 for seed in range(400)]
    excess = 500 - (LENGTH - 2)
    assert abs(np.mean(firsts) - excess / 2) <= 4 * np.sqrt(excess / 4 / 400)


def test_shapes_and_types():
    corpus = memory_corpus()
    row = make_row(corpus, make_plan(corpus, 'sop'), 0)
    shapes = {name: (array.shape, array.dtype) for name, array in row.items()}
    expected = dict.fromkeys(('tokens', 'segments', 'token_types', 'positions'), ((LENGTH,), np.int32))
    assert shapes == expected | {name: ((), np.int32) for name in ('lengths', 'pair_labels')} | {
        'pair_weights': ((), np.float32)
    }
