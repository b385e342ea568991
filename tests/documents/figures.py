"""Finds the measured figures of a page, and the figures that have no record of their measurement.

A measured figure is a number with a unit of a measurement, a row of a table whose head names such a unit, or a picture.
Guides have no measured figures: they link to the pages in docs/results/. There, a section with figures has a record.
It is a bash block whose first line is a comment with the date and the machine, or, for published figures, a line that
begins with "Source:". Each picture, in guides too, is written by a command of the same section.
"""

import dataclasses
import re
from collections.abc import Iterator

from tests.documents.pages import blocks, commands, record_of

NUMBER = r'(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?'
WORD_UNIT = (
    r'(?:ms|seconds?|minutes?|hours?|KiB|MiB|GiB|MB|GB|%|points|nats|tokens/s|examples/s|times|x the|of the time'
    r'|bits per (?:byte|character|dimension))'
)
UNIT = rf'(?:s|{WORD_UNIT})'
SCORE = r'(?:perplexit(?:y|ies)|accuracy|F1|exact match|loss|ratio|`em`|`sp_em`)'
FIGURE = re.compile(rf'{NUMBER} ?{UNIT}(?!\w)|\b{SCORE} (?:of |is |was |has )?{NUMBER}')
HEAD = re.compile(rf'(?<!\w)(?:{WORD_UNIT}|{SCORE}|result|time|temporary memory|error|distance)(?!\w)')
PICTURE = re.compile(r'!\[[^\]]*\]\(([^)]+)\)')


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure with its page and the number of its line, counted from 1."""

    page: str
    line: int
    text: str


def sections(text: str) -> Iterator[tuple[int, str]]:
    """Yields the number of the first line and the text of every section; a heading inside a fenced block starts
    none.
    """
    hidden = re.sub(
        r'^```.*?^```$', lambda block: re.sub(r'[^\n]', ' ', block[0]), text, flags=re.MULTILINE | re.DOTALL
    )
    starts = [0, *(found.start() for found in re.finditer(r'^#+ ', hidden, re.MULTILINE) if found.start())]
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[:start].count('\n') + 1, text[start:stop]


def figures(page: str, first_line: int, text: str) -> Iterator[Figure]:
    """Yields the figures of a section outside its fenced blocks and inline code; a row of a measured table is one
    figure.
    """
    prose = re.sub(r'^```.*?^```$', lambda block: '\n' * block[0].count('\n'), text, flags=re.MULTILINE | re.DOTALL)
    in_measured_table, before = False, ''
    for number, line in enumerate(prose.split('\n'), start=first_line):
        bare = re.sub(r'(?<!`)`(?!(?:em|sp_em)`)[^`]*`', '``', line)
        if line.startswith('|') and not before.startswith('|'):
            in_measured_table = bool(HEAD.search(bare))
        elif line.startswith('|') and in_measured_table and re.search(rf'\|[^|]*{NUMBER}', bare):
            yield Figure(page, number, line)
        elif found := [*FIGURE.finditer(bare), *PICTURE.finditer(bare)]:
            yield from (Figure(page, number, one[0]) for one in found)
        before = line


def without_record(page: str, text: str) -> list[Figure]:
    """Returns the figures without a record (in a guide: all), and the pictures that no command of their section
    writes.
    """
    found = []
    is_result = page.startswith('docs/results/')
    for first_line, section in sections(text):
        own = list(blocks(page, section))
        written = ' '.join(command.text for block in own for command in commands(block) if block.language == 'bash')
        has_record = bool(re.search('^Source: ', section, re.MULTILINE)) or any(
            record_of(block) and list(commands(block)) for block in own
        )
        for figure in figures(page, first_line, section):
            picture = PICTURE.fullmatch(figure.text)
            if picture:
                is_recorded = re.sub(r'^(docs|\.\.)/', '', picture[1]) in written
            else:
                is_recorded = is_result and has_record
            found += [] if is_recorded else [figure]
    return found
