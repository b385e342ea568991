"""Cuts long texts at blank lines, where no sentence and no word goes on."""

import re
from collections.abc import Iterator

SECTION = 2**17  # characters; a longer document is cut at the next blank line, so that no task or record grows with it
BLANK_LINE = re.compile(r'\n[ \t]*\n')


def cut_at_blank_lines(text: str, section: int = SECTION) -> Iterator[str]:
    """The text in sections of `section` characters or a little more, cut at blank lines; together they are the text."""
    start = 0
    while blank := BLANK_LINE.search(text, start + section):
        yield text[start : blank.end()]
        start = blank.end()
    yield text[start:]
