"""Tests of the toy problems: correct answers, all lengths, and pairs that depend only on seed and number."""

import pytest

from efficient_attention.data.pairs.toy_problems import ToyProblem, parse_toy_problem, toy_pairs, toy_target_digits
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'problem, digits, expected',
    [
        ('copy', [3, 1, 3], [3, 1, 3]),
        ('reverse', [3, 1, 2], [2, 1, 3]),
        ('sort', [3, 1, 2], [1, 2, 3]),
        ('sum', [9, 9, 9], [2, 7]),
    ],
)
def test_answers(problem: str, digits: list[int], expected: list[int]):
    assert toy_target_digits(problem, digits) == expected


def test_pairs_have_every_length_and_do_not_depend_on_how_many_there_are():
    many, few = (list(toy_pairs(ToyProblem('reverse', rows, 2, 5, 7))) for rows in (200, 20))
    assert many[:20] == few
    assert {len(source.split()) for source, _ in many} == {2, 3, 4, 5}
    assert all(source.split()[::-1] == target.split() for source, target in many)
    assert many != list(toy_pairs(ToyProblem('reverse', 200, 2, 5, 8)))


def test_a_toy_problem_is_read_from_its_text():
    assert parse_toy_problem('sort:1000:2-20', 'pairs.train') == ToyProblem('sort', 1000, 2, 20)
    assert parse_toy_problem('sum:10:1-1:3', 'pairs.train') == ToyProblem('sum', 10, 1, 1, 3)


@pytest.mark.parametrize('text', ['sort', 'swap:10:1-2', 'copy:0:1-2', 'copy:10:3-2', 'copy:10:0-2', 'copy:-1:1-2'])
def test_other_texts_are_refused_by_the_field(text: str):
    with pytest.raises(InputError, match=r'^pairs.test has the set'):
        parse_toy_problem(text, 'pairs.test')
