"""Tests of windows over words: each word is predicted once, in the row with the most context around it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.tasks.problems.token_windows import WordTokens, word_tokens, word_windows


def tokens_of(sizes):
    """Returns words whose numbers of tokens are `sizes`."""
    words = np.full(sum(sizes), -1, np.int32)
    words[np.cumsum([0, *sizes[:-1]])] = np.arange(len(sizes))
    return WordTokens(list(range(sum(sizes))), words, len(sizes))


WORDS = st.lists(st.integers(1, 6), min_size=1, max_size=20).map(tokens_of)


@given(WORDS, st.integers(1, 12), st.integers(1, 15))
def test_every_word_is_predicted_once_at_its_first_token(tokens, room, stride):
    found = []
    for first, words in word_windows(tokens, room, stride):
        assert 0 < len(words) <= room
        for place in np.flatnonzero(words >= 0):
            assert tokens.words[first + place] == words[place]
            found.append(words[place])
    assert sorted(found) == list(range(tokens.count))


@given(WORDS, st.integers(1, 12), st.integers(1, 15))
def test_a_word_stands_where_most_is_seen_around_it(tokens, room, stride):
    rows = word_windows(tokens, room, stride)
    for first, words in rows:
        for place in np.flatnonzero(words >= 0):
            token = first + place
            seen = [min(token - start, start + len(row) - 1 - token) for start, row in rows]
            assert min(place, len(words) - 1 - place) == max(seen)


@given(WORDS, st.integers(1, 12), st.integers(1, 15))
def test_rows_cover_all_tokens_and_start_with_a_word_where_one_can(tokens, room, stride):
    rows = word_windows(tokens, room, stride)
    covered = {first + place for first, words in rows for place in range(len(words))}
    assert covered == set(range(len(tokens.ids)))
    step = min(stride, room)
    for (before, _), (first, _) in zip(rows, rows[1:], strict=False):
        assert before < first <= before + step
        assert tokens.words[first] >= 0 or not np.any(tokens.words[before + 1 : before + step + 1] >= 0)


def test_what_fits_is_one_row():
    tokens = tokens_of([2, 3])
    [(first, words)] = word_windows(tokens, 5, 1)
    assert first == 0
    np.testing.assert_array_equal(words, [0, -1, 1, -1, -1])


def test_a_token_belongs_to_the_word_of_its_last_character():
    # As in byte-level tokenizers, ' ab' and ' c' include a space; an empty token or a single space has no word.
    spans = [(0, 1), (2, 4), (5, 6)]
    tokens = word_tokens([7, 8, 9, 1, 2, 3], [(0, 1), (1, 3), (3, 4), (4, 4), (4, 5), (4, 6)], spans)
    np.testing.assert_array_equal(tokens.words, [0, 1, -1, -1, -1, 2])
    assert tokens.lost_word_count == 0


def test_a_word_without_tokens_is_counted():
    tokens = word_tokens([7, 8], [(0, 1), (4, 5)], [(0, 1), (2, 3), (4, 5)])
    np.testing.assert_array_equal(tokens.words, [0, 2])
    assert tokens.lost_word_count == 1
