from collections import Counter

import pytest

from efficient_attention.data.examples.example_selection import article_titles_in_shares, parse_file_selections
from efficient_attention.errors import InputError

TITLES = [f'title {number}' for number in range(11)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / 'a.json'
    path.write_text('')
    return path


def select(text, rows):
    """Returns the rows that each part of a selection text selects, joined; a row is a pair (title, number)."""
    return [row for _, selection in parse_file_selections(text) for row in selection(rows, lambda row: row[0])]


def test_shares_are_even_and_have_no_article_in_common():
    shares = [article_titles_in_shares(TITLES, share, share, 3) for share in range(3)]
    assert sorted(title for share in shares for title in share) == sorted(TITLES)
    assert sorted(map(len, shares)) == [3, 4, 4]
    assert article_titles_in_shares(TITLES, 0, 1, 3) == shares[0] | shares[1]


def test_shares_do_not_depend_on_the_order_or_on_how_often_a_title_comes():
    expected = article_titles_in_shares(TITLES, 1, 1, 4)
    assert article_titles_in_shares([*reversed(TITLES), *TITLES[:5]], 1, 1, 4) == expected


def test_selections_keep_the_order_of_the_file(path):
    rows = [(title, number) for number in range(3) for title in TITLES]
    assert select(str(path), rows) == rows
    assert select(f'{path}#first:4', rows) == rows[:4]
    both = [select(f'{path}#articles:{part}/5', rows) for part in ('0-3', '4')]
    assert [row for row in rows if row not in both[1]] == both[0]
    assert set(Counter(title for title, _ in both[1]).values()) == {3}
    assert select(f'{path}#articles:4/5#first:2', rows) == both[1][:2]


def test_a_selection_belongs_to_its_part(path):
    rows = [(title, 0) for title in TITLES]
    assert select(f'{path}#first:2, {path}', rows) == [*rows[:2], *rows]


@pytest.mark.parametrize('suffix', ['first:0', 'first:x', 'articles:5/5', 'articles:3-2/5', 'articles:1', 'last:3', ''])
def test_unknown_selections_are_refused(path, suffix):
    with pytest.raises(InputError, match='is unknown; known: #articles:'):
        list(parse_file_selections(f'{path}#{suffix}'))


def test_no_file(tmp_path):
    with pytest.raises(InputError, match='no file matches'):
        list(parse_file_selections(f'{tmp_path}/b.json#first:3'))
    with pytest.raises(InputError, match='not from TFDS'):
        list(parse_file_selections('tfds:squad/v1.1:train'))
    [(paths, _)] = parse_file_selections('tfds:squad/v1.1:train', has_tables=True)
    assert list(map(str, paths)) == ['tfds:squad/v1.1:train']
