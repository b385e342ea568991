"""Tests of encoded texts: tokens and the characters that they cover."""

import numpy as np
import pytest

from efficient_attention.data.examples.special_tokens_template import special_tokens_template_of
from efficient_attention.data.examples.text_encoder import encoding_to_arrays
from efficient_attention.tasks.problems.encoded_text import (
    encoded_texts,
    tokens_in_character_span,
    trimmed_substring,
)
from tests.tasks.letters import letters, spaced_letters


@pytest.mark.parametrize('encoder', [letters(), spaced_letters()], ids=['bert', 'roberta'])
def test_rows_equal_the_tokenizer_s_own(encoder):
    template = special_tokens_template_of(encoder, is_pair=True)
    first, second = (encoded_texts(encoder, [text])[0] for text in ('who is it', 'a cat'))
    row = template.row(first.ids, second.ids)
    expected = encoding_to_arrays(encoder.tokenizer.encode('who is it', 'a cat'))
    assert template.special_token_count == encoder.special_token_count(is_pair=True)
    for name, array in expected.items():
        np.testing.assert_array_equal(row[name], array)
        assert row[name].dtype == np.int32
    assert row['tokens'][template.second_text_start(len(first))] == second.ids[0]


def test_pieces_hold_no_spaces():
    encoder, text = spaced_letters(), 'ab  cd e'
    assert [5, 6] not in encoder.encode([text])[0].offsets  # The library's pieces include spaces.
    (pieces,) = encoded_texts(encoder, [text])
    assert [text[start:stop] for start, stop in pieces.offsets if text[start:stop].strip()] == list('abcde')
    assert len(pieces) == len(pieces.ids) == len(pieces.offsets)


def test_many_texts_and_none():
    texts = ['ab'] * 1025 + ['c']
    assert [len(pieces) for pieces in encoded_texts(letters(), texts)] == [2] * 1025 + [1]
    assert encoded_texts(letters(), []) == []
    assert encoded_texts(letters(), [''])[0].offsets.shape == (0, 2)


def test_pieces_over_characters():
    offsets = np.array([[0, 3], [4, 4], [4, 6], [6, 9]], np.int32)
    assert tokens_in_character_span(offsets, 4, 6) == (2, 2)
    assert tokens_in_character_span(offsets, 5, 7) == (2, 3)
    assert tokens_in_character_span(offsets, 2, 9) == (0, 3)
    assert tokens_in_character_span(offsets, 3, 4) is None


@pytest.mark.parametrize(
    'text, span, expected',
    [
        ('one two', (0, 3), 'one'),
        ('one  two', (3, 8), 'two'),
        ('cafe\u0301 noir', (0, 4), 'cafe\u0301'),
        ('cafe\u0301', (0, 4), 'cafe\u0301'),
        ('a\u0301\u0308b', (0, 1), 'a\u0301\u0308'),
        ('x\u00a0y', (0, 2), 'x'),
    ],
)
def test_characters_as_a_reader_sees_them(text, span, expected):
    start, stop = trimmed_substring(text, *span)
    assert text[start:stop] == expected
