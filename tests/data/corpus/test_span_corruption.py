"""Tests of span corruption: T5's lengths, no lost tokens, and the distribution of span lengths and positions."""

import numpy as np
import pytest

from efficient_attention.data.corpus.noise_interface import TextToNoise
from efficient_attention.data.corpus.span_corruption import (
    SpanCorruption,
    corrupt_spans,
    max_uncorrupted_tokens,
    noised_lengths,
    random_partition,
    span_counts,
)
from efficient_attention.errors import InputError

FIRST_SENTINEL = 10_000
T5 = SpanCorruption(0.15, 3.0, np.arange(FIRST_SENTINEL, FIRST_SENTINEL - 28, -1, dtype=np.int32), 568, (511, 113))


def noised(tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a random text, and the source and the target that span corruption makes of it."""
    text = np.random.default_rng(seed).integers(0, 9000, tokens).astype(np.int32)
    return text, *T5(TextToNoise(text, np.zeros(1, np.int64)), np.random.default_rng(seed))


def rebuilt(source: np.ndarray, target: np.ndarray) -> list[int]:
    """Returns the original text: the source with each sentinel replaced by its span from the target."""
    spans: dict[int, list[int]] = {}
    for token in target.tolist():
        if token > 9000:
            spans[token] = []
        else:
            spans[[*spans][-1]].append(token)
    return [token for one in source.tolist() for token in spans.get(one, [one])]


def test_568_tokens_give_512_and_114_with_their_ends():
    assert max_uncorrupted_tokens((511, 113), 0.15, 3.0) == 568 == max_uncorrupted_tokens((511, 127), 0.15, 3.0)
    assert noised_lengths(568, 0.15, 3.0) == (511, 113) and span_counts(568, 0.15, 3.0) == (85, 28)
    _, source, target = noised(568, seed=0)
    assert (len(source) + 1, len(target) + 1) == (512, 114)


@pytest.mark.parametrize('density, mean_span', [(0.15, 3.0), (0.5, 3.0), (0.15, 1.0), (0.9, 2.5), (0.02, 8.0)])
def test_no_longer_text_fits_both_lengths(density: float, mean_span: float):
    for room in ((60, 20), (20, 60), (7, 2)):
        tokens = max_uncorrupted_tokens(room, density, mean_span)
        fits = [np.all(np.array(noised_lengths(n, density, mean_span)) <= room) for n in range(2, 90)]
        assert tokens == 2 + np.flatnonzero(fits).max()


def test_too_little_room_is_named():
    with pytest.raises(InputError, match='^noise.name span_corruption: no text fits 7 tokens of a source and 1 of a'):
        max_uncorrupted_tokens((7, 1), 0.15, 3.0)


@pytest.mark.parametrize('tokens', [2, 3, 7, 40, 567, 568])
def test_source_and_target_rebuild_the_text(tokens: int):
    for seed in range(20):
        text, source, target = noised(tokens, seed)
        assert rebuilt(source, target) == text.tolist()
        hidden, spans = span_counts(tokens, 0.15, 3.0)
        sentinels = list(range(FIRST_SENTINEL, FIRST_SENTINEL - spans, -1))
        assert [token for token in source.tolist() if token > 9000] == sentinels
        assert [token for token in target.tolist() if token > 9000] == sentinels and target[0] == FIRST_SENTINEL
        assert len(target) == hidden + spans and source[0] == text[0]  # A source begins with kept tokens.


def test_spans_with_given_lengths():
    source, target = corrupt_spans(np.arange(9), np.array([2, 3]), np.array([1, 3]), np.array([50, 49]))
    assert source.tolist() == [0, 1, 50, 3, 4, 5, 49] and target.tolist() == [50, 2, 49, 6, 7, 8]


def test_spans_are_as_long_and_as_frequent_as_uniform_cuts_make_them():
    """If T tokens are cut into S parts, the first part is longer than 1 with the probability 1 - (S - 1) / (T - 1)."""
    draws = 4000
    rng = np.random.default_rng(0)
    parts = np.stack([random_partition(85, 28, rng) for _ in range(draws)])
    assert (parts.sum(axis=1) == 85).all() and parts.min() == 1
    mean, share = 85 / 28, 27 / 84
    for place in (0, 13, 27):
        assert abs(parts[:, place].mean() - mean) < 3 * parts[:, place].std() / draws**0.5
        assert abs((parts[:, place] == 1).mean() - share) < 3 * (share * (1 - share) / draws) ** 0.5


def test_each_place_is_hidden_as_often_as_the_density_says():
    """Each position is hidden with the configured density, except near the ends: a text starts kept and ends hidden."""
    draws = 600
    source = np.zeros(568)
    for seed in range(draws):
        kept = T5(TextToNoise(np.arange(568, dtype=np.int32), np.zeros(1, np.int64)), np.random.default_rng(seed))[0]
        source[kept[kept < 568]] += 1
    hidden = 1 - source / draws
    assert abs(hidden.mean() - 85 / 568) < 1e-9
    middle = hidden[60:508]
    # About 5 positions are hidden together.
    assert abs(middle.mean() - 0.15) < 3 * (0.15 * 0.85 / draws / 448 * 5) ** 0.5
    assert np.abs(middle - 0.15).max() < 5 * (0.15 * 0.85 / draws) ** 0.5
