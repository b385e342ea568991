"""Splits English text into sentences, with rules for prose and for lists, headings and code in documentation.

A blank line always ends a sentence, and no rule looks beyond it. So a text can be cut at blank lines, and its parts
split separately or in parallel, with the same result.
"""

import re
from collections.abc import Iterator

# A full stop after one of these abbreviations never ends a sentence.
TITLES = frozenset(
    'mr mrs ms messrs mme mlle dr prof rev hon gen col maj capt lieut lt sgt st esq gov sen rep pres supt'
    ' vs viz cf e.g i.e approx ca resp'.split()
)
# These abbreviations end no sentence before a number, as in 'No. 5' or 'pp. 3-4'. 'No. He left.' is two sentences.
BEFORE_NUMBERS = frozenset(
    'no nos p pp vol vols fig figs ch chap sec sect eq art ver v par'
    ' jan feb mar apr jun jul aug sep sept oct nov dec'.split()
)

SENTENCE_END = re.compile(r'[.!?…]+["\'”’»)\]*_]*\s+')
LAST_WORD = re.compile(r'[^\s("\'“‘\[*_—-]*\Z')
OPENING = re.compile(r'["\'“‘«(\[*_`¿¡—–-]*\s*')
# No space follows a full stop in Chinese and Japanese.
IDEOGRAPHIC_END = re.compile(r'(?<=[。！？])(?=[^\s。！？”’」』）])')
NEW_UNIT = re.compile(
    # matches the start of a list item, a heading or a line of code
    r'\s*(?:[-*+•]\s|\(?(?:\d{1,3}[.)]|[a-z]\))\s|#{1,6}\s|>>>|\.\.\.\s|:[a-z]+[ :]|@[a-z]+|\|)'
)
# matches headings and Python prompts; the next line starts a new sentence
ONE_LINE_UNIT = re.compile(r'\s*(?:#{1,6}\s|>>>|\.\.\.\s)')
CODE = re.compile(r'>>>|\.\.\.\s')  # a Python prompt; a full stop in a line of code ends no sentence
RULER = re.compile(r'\s*([^\w\s])(?:\s*\1){2,}\s*\Z')  # matches horizontal rules such as '=====', '-----' or '* * *'
PREVIEW = 40  # The word before a full stop is searched in this many characters before the full stop.


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a text in order, without empty sentences; each run of white space becomes a single
    space.

    Args:
        text: prose in lines and paragraphs; Markdown or reStructuredText marks stay in the sentences.
    """
    return [sentence for unit in _line_groups(text) for sentence in _split_line_group(unit) if sentence]


def _line_groups(text: str) -> Iterator[str]:
    """Yields groups of lines that belong together, joined to one line: a wrapped paragraph, a list item, a heading, a
    line of code."""
    lines: list[str] = []
    ends_here = False
    for line in text.splitlines():
        is_break = not line or line.isspace() or RULER.match(line) is not None
        if lines and (is_break or ends_here or NEW_UNIT.match(line)):
            yield ' '.join(' '.join(lines).split())
            lines = []
        if not is_break:
            lines.append(line)
            ends_here = ONE_LINE_UNIT.match(line) is not None
    if lines:
        yield ' '.join(' '.join(lines).split())


def _split_line_group(unit: str) -> Iterator[str]:
    if CODE.match(unit):
        yield unit
        return
    start = 0
    for match in SENTENCE_END.finditer(unit):
        if match.end() < len(unit) and _ends_sentence(unit, match):
            yield from _split_ideographic(unit[start : match.end()].rstrip())
            start = match.end()
    yield from _split_ideographic(unit[start:])


def _split_ideographic(sentence: str) -> list[str]:
    return IDEOGRAPHIC_END.split(sentence) if '。' in sentence or '！' in sentence or '？' in sentence else [sentence]


def _ends_sentence(unit: str, match: re.Match[str]) -> bool:
    following = unit[OPENING.match(unit, match.end()).end() :][:1]  # type: ignore[union-attr]  # it matches anything
    if not following or following.islower():
        return False
    if not match.group().startswith('.') or match.group().startswith('..'):
        return True
    if unit[: match.start()].isdigit():  # The number of a list item, as in '1. First', ends no sentence.
        return False
    word = LAST_WORD.search(unit[max(0, match.start() - PREVIEW) : match.start()]).group()  # type: ignore[union-attr]
    return not _is_abbreviation(word, following)


def _is_abbreviation(word: str, following: str) -> bool:
    """Whether the full stop after `word` only marks an abbreviation; `following` is the letter or digit after the
    stop."""
    lowered = word.lower()
    if lowered in TITLES or (lowered in BEFORE_NUMBERS and following.isdigit()):
        return True
    # an initial as in 'J. Smith', but not the pronoun in 'So do I. He left.'
    is_initial = len(word) == 1 and word.isupper() and word != 'I'
    is_acronym = word.isupper() and '.' in word and all(len(part) <= 1 for part in word.split('.'))  # 'U.S. Army'
    return is_initial or is_acronym
