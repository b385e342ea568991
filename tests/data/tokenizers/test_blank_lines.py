"""Tests that a text's sections join to the text and split into the same sentences."""

from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.data.corpus.sentence_splitting import split_sentences
from efficient_attention.data.tokenizers.plain_text_tokenizer import BLANK_LINE, cut_at_blank_lines


@given(st.lists(st.sampled_from(['word. ', '\n', '\n\n', '\n \t\n', 'a\n', 'B'])).map(''.join), st.integers(1, 30))
def test_sections_make_up_the_text_and_end_at_blank_lines(text, size):
    sections = list(cut_at_blank_lines(text, size))
    assert ''.join(sections) == text
    assert all(len(section) >= size and BLANK_LINE.search(section) for section in sections[:-1])
    assert [one for section in sections for one in split_sentences(section)] == split_sentences(text)


def test_a_text_without_blank_lines_stays_whole():
    assert list(cut_at_blank_lines('x' * 300_000)) == ['x' * 300_000]
