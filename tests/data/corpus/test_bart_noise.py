"""Tests of BART's noise: whole words, budgets and lengths of spans, kept order, and each other noise separately."""

import math
from typing import Any

import numpy as np
import pytest

from efficient_attention.config.noise import NoiseConfig
from efficient_attention.data.corpus.bart_noise import (
    MASKED,
    BartNoise,
    infill_spans,
    permute_sentences,
    random_span_starts,
    span_lengths,
)
from efficient_attention.data.corpus.noise_interface import TextToNoise

MASK = 5000
STARTS = np.array([0, 40, 47, 120, 180])
TOKENS = 200
CONTINUES = np.random.default_rng(1).random(TOKENS) < 0.3
CONTINUES[STARTS] = False
TEXT = TextToNoise(np.arange(TOKENS, dtype=np.int32), STARTS)  # Each token's id is its position.
NOTHING: dict[str, Any] = {'permutation': 0.0, 'infilling': 0.0}


def places(seed: int = 0, **fields: Any) -> np.ndarray:
    noise = BartNoise(NoiseConfig('bart', **fields), MASK, CONTINUES, TOKENS, (TOKENS, TOKENS))
    rng = np.random.default_rng(seed)
    found = noise.noised_token_positions(TEXT, rng)
    source, target = noise(TEXT, np.random.default_rng(seed))
    assert np.array_equal(target, TEXT.tokens) and np.array_equal(source, np.where(found == MASKED, MASK, found))
    return found


def kept(found: np.ndarray) -> np.ndarray:
    return found[found != MASKED]


def sentences(order: np.ndarray) -> list[int]:
    """Returns the sentence numbers in their new order; asserts that the tokens of each sentence stay together."""
    numbers = np.searchsorted(STARTS, order, side='right') - 1
    changes = np.flatnonzero(np.diff(numbers, prepend=-1))
    assert len(changes) == len(set(numbers.tolist()))
    return numbers[changes].tolist()


def test_without_any_noise_the_source_is_the_text():
    assert np.array_equal(places(**NOTHING), np.arange(TOKENS))


@pytest.mark.parametrize('share, moved', [(1.0, 5), (0.5, 3), (0.2, 1)])
def test_sentences_change_places_and_keep_their_words(share: float, moved: int):
    orders = [permute_sentences(STARTS, TOKENS, share, np.random.default_rng(seed)) for seed in range(200)]
    assert all(np.array_equal(np.sort(order), np.arange(TOKENS)) for order in orders)
    numbers = [sentences(order) for order in orders]
    assert all(sum(np.array(one) != np.arange(5)) <= moved for one in numbers)
    assert (max(sum(np.array(one) != np.arange(5)) for one in numbers) == moved) == (moved > 1)
    if moved == 5:  # Each sentence comes first equally often.
        first = np.bincount([one[0] for one in numbers], minlength=5)
        assert np.abs(first - 40).max() < 3 * (200 * 0.2 * 0.8) ** 0.5


def test_infilling_hides_whole_words_and_as_many_as_asked_for():
    words = int((~CONTINUES).sum())
    first_of_word = np.maximum.accumulate(np.where(CONTINUES, 0, np.arange(TOKENS)))
    for seed in range(50):
        found = places(seed, permutation=0.0)
        stays = kept(found)
        assert (np.diff(stays) > 0).all()  # The kept tokens are in the order of the text.
        gone = np.setdiff1d(np.arange(TOKENS), stays)
        assert not set(first_of_word[gone]) & set(first_of_word[stays])  # Words are deleted or kept as a whole.
        assert len(set(first_of_word[gone])) == math.ceil(0.3 * words)
        assert len(found) <= TOKENS


def test_the_source_of_both_is_sentences_in_another_order_with_masks():
    for seed in range(20):
        numbers = np.searchsorted(STARTS, kept(places(seed)), side='right') - 1
        assert len(np.flatnonzero(np.diff(numbers))) + 1 == len(set(numbers.tolist()))


def test_lengths_of_spans_are_those_of_poissons_distribution():
    """Span lengths follow the Poisson distribution. Only the last span is cut, which does not show among so many."""
    rng = np.random.default_rng(0)
    lengths = span_lengths(30_000, 3.0, rng)
    spans = len(lengths)
    assert lengths.sum() == 30_000
    assert abs(lengths.mean() - 3) < 3 * (3 / spans) ** 0.5
    for length in range(8):
        share = math.exp(-3) * 3**length / math.factorial(length)
        assert abs((lengths == length).mean() - share) < 3 * (share * (1 - share) / spans) ** 0.5


@pytest.mark.parametrize('words', [1, 2, 5, 60])
def test_spans_are_never_more_than_the_words_they_hide(words: int):
    for seed in range(300):
        lengths = span_lengths(words, 3.0, np.random.default_rng(seed))
        assert lengths.sum() == words and 1 <= len(lengths) <= words and lengths.min() >= 0


def test_spans_lie_side_by_side_and_anywhere():
    lengths, draws, words = np.array([3, 0, 2, 1]), 3000, 20
    first = np.stack([random_span_starts(lengths, words, np.random.default_rng(seed)) for seed in range(draws)])
    assert (first[:, 0] >= 0).all() and (first[:, -1] + 1 <= words).all()
    gaps = first[:, 1:] - (first + lengths)[:, :-1]
    assert (gaps >= 0).all() and (gaps == 0).any()  # Spans may touch.
    hidden = np.zeros(words)
    for place, length in ((span, length) for row in first for span, length in zip(row, lengths, strict=True)):
        hidden[place : place + length] += 1
    # Uniform lists of positions have the same distribution from the start and from the end.
    ends = [first[:, 0], words - (first + lengths)[:, -1]]
    assert abs(ends[0].mean() - ends[1].mean()) < 3 * ((ends[0].var() + ends[1].var()) / draws) ** 0.5
    assert hidden.sum() == draws * 6


def test_a_span_without_words_is_a_mask_between_two():
    class Zeros:
        """Random numbers that give spans of the lengths 0, 0 and 2."""

        def poisson(self, _mean: float, count: int) -> np.ndarray:
            return np.array([0, 0, 2])[:count]

        def permutation(self, lengths: np.ndarray) -> np.ndarray:
            return lengths

        def choice(self, _slots: int, count: int, **_options: bool) -> np.ndarray:
            return np.array([1, 2, 4])[:count]

    is_start = np.array([True, False, True, True, True, True])  # 5 words; the first has two tokens.
    found = infill_spans(np.arange(6), is_start, 0.6, 3.0, Zeros())  # type: ignore[arg-type]
    assert found.tolist() == [0, 1, MASKED, MASKED, 2, MASKED]


def test_masking_and_deletion_take_their_share_of_the_tokens():
    masked = places(masking=0.15, **NOTHING)
    assert len(masked) == TOKENS and (masked == MASKED).sum() == 30
    assert np.array_equal(kept(masked), np.arange(TOKENS)[masked != MASKED])
    deleted = places(deletion=0.1, **NOTHING)
    assert len(deleted) == 180 and (np.diff(deleted) > 0).all()
    both = places(masking=0.5, deletion=0.5, **NOTHING)
    assert (both == MASKED).sum() == 100 and len(kept(both)) == 50  # Deletion never deletes a mask.
    assert len(places(deletion=1.0, rotation=1.0, **NOTHING)) == 0
    counts = sum((places(seed, masking=0.15, **NOTHING) == MASKED).astype(int) for seed in range(300))
    assert np.abs(counts - 45).max() < 5 * (300 * 0.15 * 0.85) ** 0.5


def test_a_rotated_text_begins_anywhere_and_goes_on_from_its_start():
    found = [places(seed, rotation=1.0, **NOTHING) for seed in range(300)]
    assert all(np.array_equal(one, np.roll(np.arange(TOKENS), -one[0])) for one in found)
    firsts = np.array([one[0] for one in found])
    assert abs(firsts.mean() - 99.5) < 3 * (200 / 12**0.5) / 300**0.5
    rotated = sum(int(places(seed, rotation=0.3, **NOTHING)[0] != 0) for seed in range(300))
    assert abs(rotated - 90) < 3 * (300 * 0.3 * 0.7) ** 0.5 + 1
