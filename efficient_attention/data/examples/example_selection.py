"""Selects some of a file's examples by a suffix of the file name, such as '#articles:0-3/5' in
'dev-v2.0.json#articles:0-3/5'.

    <globs>                     all examples; globs or paths, separated by commas; also tables, where a format has them
    <glob>#articles:0-3/5       of five shares of the articles, the shares 0 to 3 (one share: '#articles:4/5')
    <glob>#first:10000          the first 10,000
    <glob>#articles:0-3/5#first:100   both selections, one after the other

An article is all examples with one title. Articles are sorted by a hash of their title and assigned to the shares in
turn. So shares differ by at most one article, do not depend on the order in the file, and never have a common article.
A selection applies to the glob before it, and to all files of this glob together.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from efficient_attention.data.preparation.held_out_documents import document_hash
from efficient_attention.data.sources.tables import TFDS, expand_table_names
from efficient_attention.data.sources.text_files import find_files
from efficient_attention.errors import InputError

Row = TypeVar('Row')
ARTICLES = re.compile(r'articles:(\d+)(?:-(\d+))?/(\d+)')
FIRST = re.compile(r'first:(\d+)')


class ExampleSelector(Protocol):
    """A function that selects some examples and keeps their order; it gets the examples, and a function that returns an
    example's article."""

    def __call__(self, rows: Sequence[Row], article_of: Callable[[Row], str]) -> Sequence[Row]:
        """Returns the selected rows, in order."""


def parse_file_selections(text: str, *, has_tables: bool = False) -> Iterator[tuple[tuple[Path, ...], ExampleSelector]]:
    """Yields, for each of the comma-separated sources, its files and the function that selects from their examples.

    `has_tables`: whether the format also allows names of TFDS splits, which are yielded as they are, and saved folders.

    Raises:
        InputError: no file matches, or a selection has another form than above.
    """
    for source in text.split(','):
        glob, *selections = source.strip().split('#')
        if glob.startswith(TFDS) and not has_tables:
            raise InputError(f'{glob}: this format is read only from files, not from TFDS')
        files = tuple(map(Path, expand_table_names(glob))) if has_tables else find_files(glob)
        steps = [_parse_selection(selection, source.strip()) for selection in selections]
        yield files, _compose_selections(steps)


def article_titles_in_shares(articles: Sequence[str], first: int, last: int, shares: int) -> set[str]:
    """Divides articles into `shares` equal shares; returns the titles in the shares `first` to `last`.

    Titles are sorted by their hash and assigned to the shares in turn.
    """
    order = sorted(set(articles), key=lambda title: (document_hash(title), title))
    return {title for turn, title in enumerate(order) if first <= turn % shares <= last}


def _parse_selection(selection: str, source: str) -> ExampleSelector:
    if match := ARTICLES.fullmatch(selection):
        first, shares = int(match[1]), int(match[3])
        last = int(match[2] or first)
        if first <= last < shares:
            return lambda rows, article_of: _select_by_article(rows, article_of, (first, last, shares))
    elif (match := FIRST.fullmatch(selection)) and int(match[1]):
        count = int(match[1])
        return lambda rows, _: rows[:count]
    raise InputError(f'{source}: #{selection} is unknown; known: #articles:<first>[-<last>]/<shares>, #first:<count>')


def _select_by_article(
    rows: Sequence[Row], article_of: Callable[[Row], str], shares: tuple[int, int, int]
) -> Sequence[Row]:
    chosen = article_titles_in_shares([article_of(row) for row in rows], *shares)
    return [row for row in rows if article_of(row) in chosen]


def _compose_selections(steps: Sequence[ExampleSelector]) -> ExampleSelector:
    def select(rows: Sequence[Row], article_of: Callable[[Row], str]) -> Sequence[Row]:
        for step in steps:
            rows = step(rows, article_of)
        return rows

    return select
