"""Opens the text source that a config names, such as 'stdlib', 'text:books/**/*.txt' or 'jsonl:rows/*.jsonl.gz#text'.

    stdlib                         documentation topics and docstrings of the running Python's standard library
    text:<globs>                   plain, Markdown (front matter dropped), .gz or .bz2 files, one document per file
    text:<globs>#paragraphs        the same files, documents separated by blank lines
    jsonl:<globs>#<field>          JSON lines, plain, .gz or .bz2, one document per row
    dump:<globs>                   XML dumps of Wikipedia, plain, .gz or .bz2, one document per article, without markup
    parquet:<globs>#<field>        Parquet files, one document per row
    arrow:<globs>#<field>          Arrow files, or a split's folder that `save_to_disk` of Hugging Face's datasets wrote
    arrayrecord:<globs>            records of UTF-8 text, one document per record
    tfds:<name>[:<split>][#<field>]  a prepared TensorFlow Datasets dataset, without TensorFlow; split 'train' by
                                   default, and the field 'text' or the only text
    recall:<rows>:<pairs>:<fewest>-<most>[:<seed>]  generated rows of key-value pairs (recall_rows.py), with a number of
                                   keys per row from `fewest` to `most`

<globs> is one glob or several, separated by commas.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from efficient_attention.data.sources.array_records import array_record_documents
from efficient_attention.data.sources.arrow_files import arrow_documents, find_table_files
from efficient_attention.data.sources.json_files import json_documents
from efficient_attention.data.sources.recall_rows import parse_recall_rows, recall_documents
from efficient_attention.data.sources.stdlib_documents import stdlib_documents, stdlib_files
from efficient_attention.data.sources.text_files import digest_files, find_files, read_lines, read_text
from efficient_attention.data.sources.tfds import digest_texts, parse_tfds_field, tfds_documents
from efficient_attention.errors import InputError

MARKDOWN = frozenset({'.md', '.markdown'})
FRONT_MATTER = re.compile(
    r'\A\s*---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)', re.DOTALL
)  # YAML metadata between two lines of dashes, at the start of a file


Document = TypeVar('Document', str, bytes)


@dataclasses.dataclass(frozen=True)
class TextSource(Generic[Document]):
    """A source of documents that can be read repeatedly; each reading yields the same documents in the same order.

    Attributes:
        text: the source's text in the config.
        digest: a function that reads the content and returns its SHA-256 in hex.
        documents: a function that yields texts, none of them blank, or the bytes of images (images.py).
    """

    text: str
    digest: Callable[[], str]
    documents: Callable[[], Iterator[Document]]


def open_source(text: str, field: str = 'data.source') -> TextSource[str]:
    """Opens a text source such as 'text:books/*.txt'; finds its files now, and reads them later.

    Args:
        text: the source's text in the config, see the module docstring.
        field: its config field, for messages.

    Raises:
        InputError: unknown kind or suffix, or no file matches.
    """
    kind, colon, rest = text.partition(':')
    if kind not in KINDS or bool(colon) != (kind != 'stdlib'):
        raise InputError(f'{field} is {text!r}; known: {", ".join(KINDS.values())}')
    try:
        reading, digest, documents = _OPENERS[kind](rest)
    except InputError as error:
        raise InputError(f'{field} {text!r}: {error}') from None
    return TextSource(
        text=text,
        digest=lambda: hashlib.sha256(f'{reading} {digest()}'.encode()).hexdigest(),
        documents=lambda: (document for document in documents() if document and not document.isspace()),
    )


# kind and options of a text source; a function that hashes the source's content; a function that yields its documents
_Opened = tuple[str, Callable[[], str], Callable[[], Iterable[str]]]


def _open_stdlib(_rest: str) -> _Opened:
    files = stdlib_files()
    return 'stdlib', functools.partial(digest_files, files), functools.partial(stdlib_documents, files)


def _open_text(rest: str) -> _Opened:
    globs, hash_sign, suffix = rest.partition('#')
    if hash_sign and suffix != 'paragraphs':
        raise InputError(f'#{suffix} is unknown; known: #paragraphs')
    files = find_files(globs)
    read = _paragraphs if suffix else _whole_files
    return f'text#{suffix}', functools.partial(digest_files, files), functools.partial(read, files)


def _open_json(rest: str) -> _Opened:
    globs, _, field = rest.partition('#')
    if not field:
        raise InputError('the field is missing; write jsonl:<glob>#<field>')
    files = find_files(globs)
    return f'jsonl#{field}', functools.partial(digest_files, files), functools.partial(json_documents, files, field)


def _open_dump(rest: str) -> _Opened:
    from efficient_attention.data.sources.wikipedia_dump import (
        wikipedia_dump_documents,
    )  # Only Wikipedia dumps need this parser.

    files = find_files(rest)
    return 'dump', functools.partial(digest_files, files), functools.partial(wikipedia_dump_documents, files)


def _open_records(rest: str) -> _Opened:
    files = find_files(rest)
    return 'arrayrecord', functools.partial(digest_files, files), functools.partial(array_record_documents, files)


def _open_tables(rest: str, kind: str) -> _Opened:
    sources, _, field = rest.partition('#')
    if not field:
        raise InputError(f'the field is missing; write {KINDS[kind]}')
    files = [path for source in sources.split(',') for path in find_table_files(source.strip())]
    documents = functools.partial(arrow_documents, files, field)
    return f'{kind}#{field}', functools.partial(digest_files, files), documents


def _open_tfds(rest: str) -> _Opened:
    documents = functools.partial(tfds_documents, *parse_tfds_field(rest))
    return 'tfds', lambda: digest_texts(documents()), documents


def _open_recall(rest: str) -> _Opened:
    documents = functools.partial(recall_documents, parse_recall_rows(rest))
    return 'recall', lambda: digest_texts(documents()), documents


KINDS = {  # kind of source (the word before the colon) -> how to write it in a config
    'stdlib': 'stdlib',
    'text': 'text:<glob>[#paragraphs]',
    'jsonl': 'jsonl:<glob>#<field>',
    'dump': 'dump:<glob>',
    'parquet': 'parquet:<glob>#<field>',
    'arrow': 'arrow:<glob or saved folder>#<field>',
    'arrayrecord': 'arrayrecord:<glob>',
    'tfds': 'tfds:<name>[:<split>][#<field>]',
    'recall': 'recall:<rows>:<pairs>:<fewest>-<most>[:<seed>]',
}
_OPENERS: dict[str, Callable[[str], _Opened]] = {
    'stdlib': _open_stdlib,
    'text': _open_text,
    'jsonl': _open_json,
    'dump': _open_dump,
    'parquet': functools.partial(_open_tables, kind='parquet'),
    'arrow': functools.partial(_open_tables, kind='arrow'),
    'arrayrecord': _open_records,
    'tfds': _open_tfds,
    'recall': _open_recall,
}


def _whole_files(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        text = read_text(path)
        yield FRONT_MATTER.sub('', text) if _is_markdown(path) else text


def _is_markdown(path: Path) -> bool:
    return not MARKDOWN.isdisjoint(path.suffixes[-2:])


def _paragraphs(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        lines: list[str] = []
        for line in _lines_without_front_matter(path):
            if line.strip():
                lines.append(line)
            elif lines:
                yield '\n'.join(lines)
                lines = []
        if lines:
            yield '\n'.join(lines)


def _lines_without_front_matter(path: Path) -> Iterator[str]:
    if _is_markdown(path):
        yield from next(_whole_files((path,))).split('\n')
    else:
        yield from (line for _, line in read_lines(path))
