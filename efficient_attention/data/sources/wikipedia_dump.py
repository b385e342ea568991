"""Reads articles as plain text from MediaWiki's XML dumps (enwiki-latest-pages-articles.xml.bz2 and its parts).

As for BERT (Devlin et al. 2018, arXiv 1810.04805, section 3.1), only running text is kept: no lists, tables or
headings. The file is a stream, with one page in memory at a time.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import mwparserfromhell
from mwparserfromhell import nodes

from efficient_attention.data.sources.text_files import read_chunks
from efficient_attention.errors import InputError

PAGE_CHARACTERS = 2**24  # maximum number of characters of a page in a dump; MediaWiki itself saves at most 2 MiB
# Maximum numbers of tags, links and tables of a page. Above a limit, all elements of this kind are removed first.
# Parse time grows with the square of the number of unclosed tags: 20,000 '<ref>' take a minute.
# Real articles have a few thousand tags.
MOST = ((re.compile('<(?=[a-z])', re.I), 10_000), (re.compile(r'\[?[a-z]+://\S*'), 5_000), (re.compile(r'{\|'), 2_000))
NAMESPACE = re.compile(r':?(file|image|category|media|wikipedia|help|portal|template|[a-z]{2,3}(-[a-z]+)?):', re.I)
WITHOUT_TEXT = frozenset('ref references gallery table math score timeline imagemap syntaxhighlight source'.split())
LIST_ITEMS = frozenset(('li', 'dd', 'dt'))
ITEM = '\x00'  # marks lines that contain a list item, so that they are dropped
BEHAVIOUR = re.compile(r'__[A-Z]+__')
STYLE = re.compile(r"'{2,}")
# Finds punctuation that removed templates leave at the ends of a bracket.
# The repetition is limited, because long runs of commas would take for ever.
OPENED = re.compile(r'\((?: ?[,;:]){1,9} ?')
CLOSED = re.compile(r'(?: ?[,;:]){1,9} ?\)')
EMPTY_BRACKETS = re.compile(r' ?\( ?\)')
SPACES = re.compile(r'[ \t\xa0]+')


class WikiPage(NamedTuple):
    """A page of a dump, with its wikitext."""

    title: str
    namespace: str  # MediaWiki's number of the namespace; '0' = articles
    is_redirect: bool
    model: str  # kind of content: 'wikitext', or another kind
    text: str  # wikitext


def wikipedia_dump_documents(files: Sequence[Path]) -> Iterator[str]:
    """Yields the running text of every article in dumps, plain, .gz or .bz2; blank lines separate paragraphs.

    Redirects and pages of other namespaces are skipped.

    Raises:
        InputError: a file is no XML, is truncated, or declares entities; the message names the file and the line.
    """
    for path in files:
        for page in read_pages(path):
            if page.namespace == '0' and not page.is_redirect and page.model == 'wikitext':
                yield wikitext_to_plain_text(page.text)


def read_pages(path: Path) -> Iterator[WikiPage]:
    """Yields the pages of one dump in order; raises InputError as `wikipedia_dump_documents`."""
    reader = _PageReader(str(path))
    for chunk in read_chunks(path):
        yield from reader.feed(chunk)
    yield from reader.feed(b'', is_last=True)


def wikitext_to_plain_text(wikitext: str) -> str:
    """Converts an article's wikitext to its running text; returns '' if the article has no running text."""
    for mark, most in MOST:
        if sum(1 for _ in mark.finditer(wikitext)) > most:
            wikitext = mark.sub(' ', wikitext)
    code = mwparserfromhell.parse(wikitext.replace(ITEM, ''), skip_style_tags=True)
    lines = ''.join(map(_node_text, code.nodes)).splitlines()
    kept = [_remove_markup_remains(line) for line in lines if ITEM not in line]
    return '\n\n'.join(line for line in kept if line)


def _remove_markup_remains(line: str) -> str:
    line = SPACES.sub(' ', STYLE.sub('', BEHAVIOUR.sub('', line)))
    return EMPTY_BRACKETS.sub('', OPENED.sub('(', CLOSED.sub(')', line))).strip()


def _node_text(node: Any) -> str:
    """Returns the text of a node of mwparserfromhell's tree; a list item starts with the mark ITEM."""
    match node:
        case nodes.Text():
            return str(node.value)
        case nodes.HTMLEntity():
            return node.normalize()
        case nodes.Wikilink():
            if NAMESPACE.match(str(node.title)):
                return ''
            return _contents_text(node.text if node.text is not None else node.title)
        case nodes.ExternalLink():
            return _contents_text(node.title) if node.brackets and node.title is not None else ''
        case nodes.Tag():
            return _tag_text(node)
    return ''  # Templates, comments, headings and arguments have no running text.


def _tag_text(node: Any) -> str:
    name = str(node.tag).strip().lower()
    if name in LIST_ITEMS:
        return ITEM + _contents_text(node.contents)
    if name in WITHOUT_TEXT:
        return ''
    return ' ' if name in ('br', 'hr') else _contents_text(node.contents)


def _contents_text(code: Any) -> str:
    return ''.join(map(_node_text, code.nodes)) if code is not None else ''


class _PageReader:
    """Collects the fields of each page from the events of the XML parser expat."""

    FIELDS = frozenset(('title', 'ns', 'model', 'text'))

    def __init__(self, where: str) -> None:
        self._where = where
        self._pages: list[WikiPage] = []
        self._fields: dict[str, list[str]] = {}
        self._open: list[str] | None = None  # parts of the text of the field that is being read
        self._characters = 0
        self._is_redirect = False
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start_element
        self._parser.EndElementHandler = self._end_element
        self._parser.CharacterDataHandler = self._character_data
        self._parser.StartDoctypeDeclHandler = self._refuse_entities

    def feed(self, chunk: bytes, *, is_last: bool = False) -> list[WikiPage]:
        """Parses the next bytes of a dump; returns the pages that are now complete."""
        try:
            self._parser.Parse(chunk, is_last)
        except expat.ExpatError as error:
            raise InputError(f'{self._where}: not the XML of a dump ({error})') from None
        pages, self._pages = self._pages, []
        return pages

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        del attributes
        if name == 'page':
            self._fields, self._is_redirect = {}, False
        elif name == 'redirect':
            self._is_redirect = True
        elif name in self.FIELDS:
            self._open = self._fields[name] = []
            self._characters = 0

    def _end_element(self, name: str) -> None:
        if name in self.FIELDS:
            self._open = None
        elif name == 'page':
            found = {field: ''.join(parts) for field, parts in self._fields.items()}
            model = found.get('model', 'wikitext')  # Dumps from before 2012 do not state the kind of content.
            text = found.get('text', '')
            self._pages.append(WikiPage(found.get('title', ''), found.get('ns', '0'), self._is_redirect, model, text))

    def _character_data(self, text: str) -> None:
        if self._open is None:
            return
        self._characters += len(text)
        if self._characters > PAGE_CHARACTERS:
            line = self._parser.CurrentLineNumber
            raise InputError(f'{self._where}: line {line}: a page of more than {PAGE_CHARACTERS:,} characters')
        self._open.append(text)

    def _refuse_entities(self, *declaration: object) -> None:
        del declaration
        raise InputError(
            f'{self._where}: line {self._parser.CurrentLineNumber}: a document type declaration, which dumps never have'
        )
