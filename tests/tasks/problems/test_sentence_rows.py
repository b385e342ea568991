"""Tests of texts as lists of sentences: sentence boundaries, and texts or sentences that are too long."""

import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.sentence_rows import (
    SentenceLengthPolicy,
    check_several_sentences,
    sentence_token_ids,
    split_into_sentences,
)
from tests.tasks.letters import letters

SENTENCES = [np.arange(3), np.arange(7), np.arange(2)]


def sizes(policy: str, sentences: int = 2, length: int = 6) -> list[list[int]]:
    rows = SentenceLengthPolicy(policy, sentences, length).fit_to_rows(SENTENCES, 2, 'a.txt')
    return [[len(ids) for ids in row] for row in rows]


def test_a_line_break_of_html_is_a_border_where_two_of_them_are():
    text = 'It is good.<br /><br />Is it?<BR>yes, Mr. Smith'
    assert split_into_sentences(text) == ['It is good.', 'Is it? yes, Mr. Smith']


def test_sentences_without_a_token_are_left_out_but_for_one():
    found = sentence_token_ids(letters(), ['ab. C.', ' ', 'x'])
    assert [[len(ids) for ids in text] for text in found] == [[3, 2], [0], [1]]


@pytest.mark.parametrize(
    'policy, expected',
    [('truncate', [[3, 4]]), ('skip', []), ('windows', [[3, 4], [3, 2]])],
)
def test_what_is_too_long_goes_by_the_policy(policy: str, expected: list):
    assert sizes(policy) == expected
    assert sizes(policy, sentences=3, length=9) == [[3, 7, 2]]


def test_windows_lose_no_token():
    rows = SentenceLengthPolicy('windows', 2, 5).fit_to_rows(SENTENCES, 2, '')
    np.testing.assert_array_equal(np.concatenate([ids for row in rows for ids in row]), np.concatenate(SENTENCES))


def test_an_error_names_the_place_and_the_sizes():
    with pytest.raises(InputError, match='^a.txt: 3 sentences, the longest of 7 tokens; examples.sentences is 2, and '):
        sizes('error')


def test_texts_without_any_border_are_refused():
    check_several_sentences([[1], [1, 2]], 30)
    with pytest.raises(InputError, match='^examples.sentences is 30, but none of the 2 texts of examples.train has a'):
        check_several_sentences([[1], [1]], 30)
