"""Tests of texts longer than a row: cut by BERT's rule, refused, left out, or covered by windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.encoded_text import encoded_texts
from efficient_attention.tasks.problems.overlong_texts import OverlongCounts, TokenLengthPolicy, truncation_notes
from tests.tasks.letters import letters


def rows(policy, *sizes, length=10, stride=3):
    texts = [list(range(100 * number, 100 * number + size)) for number, size in enumerate(sizes)]
    return TokenLengthPolicy(policy, stride, length).fit_to_rows(
        texts, 2, 'f: line 3', ('text', 'text_pair')[: len(sizes)]
    )


@pytest.mark.parametrize('policy', ['truncate', 'error', 'skip', 'windows'])
def test_what_fits_stays(policy):
    assert rows(policy, 8) == [(list(range(8)),)]
    assert rows(policy, 3, 5) == [([0, 1, 2], [100, 101, 102, 103, 104])]


def test_policies():
    assert rows('truncate', 9) == [(list(range(8)),)]
    assert rows('truncate', 9, 3) == [([0, 1, 2, 3, 4], [100, 101, 102])]
    assert rows('skip', 9) == rows('skip', 9, 3) == []
    with pytest.raises(InputError, match="f: line 3: field 'text' has 9 tokens; data.length 10 leaves room for 8"):
        rows('error', 9)
    with pytest.raises(InputError, match="f: line 3: fields 'text' and 'text_pair' have 12 tokens"):
        rows('error', 9, 3)


@given(st.integers(9, 60), st.integers(1, 20))
def test_windows_lose_no_token(size, stride):
    assert {id for (ids,) in rows('windows', size, stride=stride) for id in ids} == set(range(size))


@given(st.integers(9, 60), st.integers(0, 4), st.booleans())
def test_windows_of_the_longer_beside_the_whole_shorter(size, short, is_first):
    found = rows('windows', *((short, size) if is_first else (size, short)))
    longer = 1 if is_first else 0
    assert {id - 100 * longer for row in found for id in row[longer]} == set(range(size))
    assert all(len(row[1 - longer]) == short and sum(map(len, row)) <= 8 for row in found)


def test_two_long_texts_leave_no_room_for_windows():
    with pytest.raises(InputError, match="f: line 3: fields 'text' and 'text_pair': the shorter text has 5 tokens"):
        rows('windows', 5, 9)


def test_a_row_must_hold_something():
    with pytest.raises(InputError, match='data.length is 4; 2 texts with 3 special tokens need more'):
        TokenLengthPolicy('truncate', 1, 4).tokens_left_for_texts(3, 2)
    assert TokenLengthPolicy('truncate', 1, 5).tokens_left_for_texts(3, 2) == 2


def test_counts_by_file():
    counts = OverlongCounts(TokenLengthPolicy('windows', 3, 10))
    for file, made in [('a', 1), ('a', 4), ('a', 2), ('b', 1), ('', 3)]:
        counts.count_row(file, is_overlong=made > 1, made=made)
    assert counts.notes() == {
        'a': 'a: 2 of 3 rows have more than data.length 10 tokens and became 6 windows',
        '': 'input: 1 of 1 rows have more than data.length 10 tokens and became 3 windows',
    }


@pytest.mark.parametrize('policy, fate', [('truncate', 'were cut'), ('skip', 'were left out')])
def test_many_files_share_a_line(policy, fate):
    counts = OverlongCounts(TokenLengthPolicy(policy, 3, 10))
    for number in range(9):
        counts.count_row(f'f{number}', is_overlong=number > 0, made=1)
    [line] = counts.notes().values()
    assert line == f'9 files, the first f0: 8 of 9 rows have more than data.length 10 tokens and {fate}'


def test_cut_questions_are_counted():
    questions = encoded_texts(letters(), ['ab', 'abcd', 'abc'])
    assert truncation_notes(questions, ['1', '2', '3'], 4) == {}
    line = '2 of 3 questions have more than examples.question_length 2 tokens and were cut, the first: 2'
    assert truncation_notes(questions, ['1', '2', '3'], 2) == {line: line}
