"""Tests of masking: the share of masked tokens, replacements, whole words, and the distribution of n-gram lengths."""

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.masking import Masker, choose_word_runs, find_words, prediction_count
from tests.data.corpus.memory_corpus import CLS, FIRST_ID, MASK, PAD, SEP, UNKNOWN, memory_vocabulary, unmask

SIZE = 5000
NGRAM_PROBABILITIES = (6 / 11, 3 / 11, 2 / 11)  # 1/n for n = 1, 2, 3, normalised to sum to 1
UNITS = ('token', 'word', 'ngram')


def make_row(used=120, length=128, seed=0):
    """Returns a row of ids: [CLS] a [SEP] b [SEP] and padding."""
    tokens = np.full(length, PAD, np.int32)
    tokens[:used] = np.random.default_rng(seed).integers(FIRST_ID, SIZE, used)
    tokens[0], tokens[used // 2], tokens[used - 1] = CLS, SEP, SEP
    return tokens


def make_masker(continuation=0.3, **fields):
    return Masker(memory_vocabulary(SIZE, continuation), DataConfig(vocab_size=SIZE, **fields))


def mask_many(masker, count, used=120):
    rng = np.random.default_rng(1)
    rows = [make_row(used, seed=seed) for seed in range(count)]
    return rows, [masker(row, used, rng) for row in rows]


def within(count, trials, probability):
    return abs(count - trials * probability) <= 4 * np.sqrt(trials * probability * (1 - probability))


@pytest.mark.parametrize(
    ('tokens', 'max_masked', 'expected'), [(128, 20, 19), (512, 80, 77), (512, 20, 20), (3, 20, 1), (10, 20, 2)]
)
def test_prediction_count_is_that_of_bert(tokens, max_masked, expected):
    assert prediction_count(tokens, 0.15, max_masked) == expected


@pytest.mark.parametrize('unit', UNITS)
def test_shapes_types_and_order(unit):
    masked = make_masker(mask_unit=unit)(make_row(), 120, np.random.default_rng(0))
    assert {name: (array.shape, array.dtype) for name, array in masked.items()} == {
        'tokens': ((128,), np.int32),
        'masked_positions': ((20,), np.int32),
        'masked_tokens': ((20,), np.int32),
        'masked_weights': ((20,), np.float32),
    }
    count = int(masked['masked_weights'].sum())
    assert count <= 18 and masked['masked_weights'][:count].all()
    assert (np.diff(masked['masked_positions'][:count]) > 0).all()
    assert not masked['masked_positions'][count:].any() and not masked['masked_tokens'][count:].any()


@pytest.mark.parametrize('unit', UNITS)
def test_unmasking_restores_the_row_and_nothing_else_changed(unit):
    for row, masked in zip(*mask_many(make_masker(mask_unit=unit), 100), strict=True):
        assert np.array_equal(unmask(masked), row)


@pytest.mark.parametrize('unit', UNITS)
def test_special_tokens_and_padding_are_never_masked(unit):
    masker = make_masker(mask_unit=unit, mask_rate=1.0, max_masked=128)
    row = make_row()
    row[[5, 6, 30]] = UNKNOWN
    masked = masker(row, 120, np.random.default_rng(0))
    chosen = masked['masked_positions'][masked['masked_weights'] > 0]
    assert set(chosen) <= set(np.flatnonzero(row >= FIRST_ID))
    # At a rate of 1, only overlapping n-grams leave tokens unmasked.
    assert unit == 'ngram' or chosen.size == (row >= FIRST_ID).sum()


def test_share_of_the_tokens_is_exact_for_tokens():
    for _, masked in zip(*mask_many(make_masker(), 50), strict=True):
        assert masked['masked_weights'].sum() == prediction_count(120, 0.15, 20) == 18


@pytest.mark.parametrize('unit', ['word', 'ngram'])
def test_share_of_the_tokens_is_nearly_reached_for_words(unit):
    _, masked = mask_many(make_masker(mask_unit=unit), 300)
    counts = np.array([each['masked_weights'].sum() for each in masked])
    assert counts.max() == 18 and counts.mean() > 17.5


@pytest.mark.parametrize('unit', UNITS)
def test_replacements_are_80_10_10(unit):
    rows, masked = mask_many(make_masker(mask_unit=unit), 1000)
    seen = np.concatenate([each['tokens'][each['masked_positions'][each['masked_weights'] > 0]] for each in masked])
    original = np.concatenate([each['masked_tokens'][each['masked_weights'] > 0] for each in masked])
    is_random = (seen != MASK) & (seen != original)
    assert within((seen == MASK).sum(), seen.size, 0.8)
    assert within((seen == original).sum(), seen.size, 0.1 + 0.1 / SIZE)
    assert within(is_random.sum(), seen.size, 0.1)
    assert seen[is_random].min() >= FIRST_ID and seen[is_random].mean() == pytest.approx(SIZE / 2, rel=0.1)


@pytest.mark.parametrize(('mask_share', 'random_share'), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_shares_of_the_config_are_honoured(mask_share, random_share):
    row = make_row()
    masked = make_masker(mask_token_share=mask_share, random_token_share=random_share)(
        row, 120, np.random.default_rng(0)
    )
    seen = masked['tokens'][masked['masked_positions'][:18]]
    assert (seen == MASK).mean() == mask_share
    assert (seen != row[masked['masked_positions'][:18]]).mean() == mask_share + random_share


def test_every_position_is_chosen_alike():
    rows, masked = mask_many(make_masker(), 2000)
    counts = np.bincount(np.concatenate([each['masked_positions'][:18] for each in masked]), minlength=128)
    candidates = np.flatnonzero(rows[0] >= FIRST_ID)
    assert all(within(counts[position], 2000, 18 / candidates.size) for position in candidates)


@pytest.mark.parametrize('unit', ['word', 'ngram'])
def test_words_are_masked_whole(unit):
    masker = make_masker(continuation=0.5, mask_unit=unit)
    is_continuation = memory_vocabulary(SIZE, 0.5).is_continuation
    for row, masked in zip(*mask_many(masker, 200), strict=True):
        is_masked = np.zeros(128, bool)
        is_masked[masked['masked_positions'][masked['masked_weights'] > 0]] = True
        is_inner = is_continuation[row[1:]] & (row[1:] >= FIRST_ID) & (row[:-1] >= FIRST_ID)
        assert (is_masked[1:] == is_masked[:-1])[is_inner].all()


def test_a_word_longer_than_the_budget_is_left_alone():
    masker = make_masker(continuation=1.0, mask_unit='word')
    masked = masker(make_row(), 120, np.random.default_rng(0))
    assert masked['masked_weights'].sum() == 0


def test_words_and_stretches():
    candidates = np.array([1, 2, 3, 5, 6, 7])
    is_continuation = np.array([True, False, True, True, False, False])
    words = find_words(candidates, is_continuation)
    assert words.bounds == [0, 1, 3, 4, 5, 6]
    assert words.stretch_ends == [2, 2, 5, 5, 5]
    assert find_words(candidates[:0], is_continuation[:0]).bounds == [0]


def test_first_runs_have_ngram_lengths():
    rng = np.random.default_rng(0)
    words = find_words(np.arange(100), np.zeros(100, bool))
    lengths = []
    for _ in range(5000):
        start, stop = choose_word_runs(words, 20, 3, rng)[0]
        if start < 98:  # Three words fit behind this start.
            lengths.append(stop - start)
    counts = np.bincount(lengths, minlength=4)[1:]
    print('n-gram lengths', counts / len(lengths))
    assert all(within(count, len(lengths), p) for count, p in zip(counts, NGRAM_PROBABILITIES, strict=True))


def test_all_runs_have_ngram_lengths_where_the_row_is_long():
    rng = np.random.default_rng(0)
    words = find_words(np.arange(20_000), np.zeros(20_000, bool))
    lengths = [stop - start for _ in range(20) for start, stop in choose_word_runs(words, 400, 3, rng)]
    counts = np.bincount(lengths, minlength=4)[1:] / len(lengths)
    assert counts == pytest.approx(NGRAM_PROBABILITIES, abs=0.03)


def test_runs_do_not_overlap_nor_cross_special_tokens_nor_exceed_the_budget():
    rng = np.random.default_rng(0)
    row = make_row()
    candidates = np.flatnonzero(row >= FIRST_ID)
    words = find_words(candidates, memory_vocabulary(SIZE).is_continuation[row[candidates]])
    for _ in range(200):
        runs = sorted(choose_word_runs(words, 18, 3, rng))
        assert sum(stop - start for start, stop in runs) <= 18
        assert all(before[1] <= after[0] for before, after in zip(runs[:-1], runs[1:], strict=True))
        assert all(candidates[stop - 1] - candidates[start] == stop - 1 - start for start, stop in runs)


def test_a_run_over_budget_falls_back_to_fewer_words():
    words = find_words(np.arange(12), np.tile([False, True], 6))  # Each word has two tokens.
    runs = [choose_word_runs(words, 3, 3, np.random.default_rng(seed)) for seed in range(50)]
    assert all(len(each) == 1 and each[0][1] - each[0][0] == 2 for each in runs)
