"""Tests that a pair of texts is shortened as in BERT's code."""

from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.data.corpus.sentence_pairs import truncated_lengths

SIZES = st.integers(0, 40)


@given(SIZES, SIZES, st.integers(2, 40))
def test_pairs_are_cut_like_berts(first, second, room):
    kept = [first, second]
    while sum(kept) > room:  # Takes one token at a time off the longer text.
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert truncated_lengths(first, second, room) == tuple(kept)
