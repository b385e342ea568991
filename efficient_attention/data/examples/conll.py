"""Reads sentences with one tag per word from CoNLL files, CoNLL-U files, or tables.

A table has a column with lists of words and a column with lists of tags (JSON lines, Parquet, Arrow, TFDS).

In a CoNLL file a line has a word and its columns, separated by tabs if the line has a tab, otherwise by spaces. A blank
line ends a sentence. By default the word is the first column and the tag the last. `examples.text` and `examples.label`
select other columns by number: 1 is the first, -1 the last. Sentences of -DOCSTART- are skipped.

In a CoNLL-U file (*.conllu) the word is FORM and the tag is UPOS, or another of the ten columns, by its lower-case
name. Lines of multiword tokens (1-2) and of empty nodes (1.1) are skipped.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.sources.tables import TableRow, read_tables
from efficient_attention.data.sources.text_files import find_files, read_lines
from efficient_attention.errors import InputError

CONLLU = ('id', 'form', 'lemma', 'upos', 'xpos', 'feats', 'head', 'deprel', 'deps', 'misc')
DEFAULTS = {'text': 0, 'label': -1}  # default column name in the config -> index of the column
CONLLU_DEFAULTS = {'text': 'form', 'label': 'upos'}

Line = tuple[int, list[str]]  # line number from 1, columns of the line


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """A sentence: its words, and one tag per word.

    Attributes:
        file: the source file; '' = no file.
        lines: line number of each word; in JSON lines all the same.
        words: at least one.
        tags: one per word; None = unknown.
        text: the text with the words; '' = the words joined by spaces.
        spans: start and end of each word in `text`, in characters.
    """

    file: str
    lines: tuple[int, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    text: str = ''
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def file_and_line(self) -> str:
        """Returns the sentence's file and first line, for error messages."""
        return f'{self.file}: line {self.lines[0]}' if self.file else 'input'


def read_sentences(config: ExamplesConfig, split: str) -> Iterator[TaggedSentence]:
    """Yields the sentences of a split ('train', 'dev' or 'test') in the order of the files; in 'test', tags may be
    missing.

    Raises:
        InputError: a file or a line is missing or invalid; the message names file, line and column.
    """
    sources = {'train': config.train, 'dev': config.dev, 'test': config.test}[split]
    if not sources:
        return
    if config.format == 'table':
        for row in read_tables(sources):
            yield _sentence_from_json_row(config, row, is_test=split == 'test')
        return
    for path in find_files(sources):
        yield from _read_column_file(config, path, is_test=split == 'test')


def _read_column_file(config: ExamplesConfig, path: Path, *, is_test: bool) -> Iterator[TaggedSentence]:
    is_conllu = '.conllu' in path.suffixes
    word = _column_index('examples.text', config.text, 'text', is_conllu)
    tag = _column_index('examples.label', config.label, 'label', is_conllu)
    lines = _conllu_lines(path) if is_conllu else _conll_lines(path)
    for sentence in _group_lines_by_sentence(lines):
        if sentence[0][1][0] == '-DOCSTART-':
            continue
        words = tuple(_read_field(path, line, word, 'examples.text') for line in sentence)
        numbers = tuple(number for number, _ in sentence)
        has_tags = not is_test or _has_both_columns(sentence[0][1], word, tag)
        tags = tuple(_read_tag(path, line, tag) for line in sentence) if has_tags else None
        if tags is not None and _nonnegative_index(sentence[0][1], word) == _nonnegative_index(sentence[0][1], tag):
            raise InputError(f'{path}: line {numbers[0]}: one column, which cannot be both word and tag')
        yield TaggedSentence(str(path), numbers, words, tags)


def _column_index(field: str, value: str, default: str, is_conllu: bool) -> int:
    """Returns the index of a column, given its name or number as the config states it."""
    if is_conllu:
        value = CONLLU_DEFAULTS[default] if value == default else value
        if value in CONLLU:
            return CONLLU.index(value)
    elif value == default:
        return DEFAULTS[default]
    if re.fullmatch('-?[1-9][0-9]*', value):
        return int(value) - 1 if int(value) > 0 else int(value)
    known = f'{", ".join(CONLLU)} or a number' if is_conllu else f'{default!r} or a number from 1 (-1 = the last)'
    raise InputError(f'{field} is {value!r}; for such a file it must be {known}')


def _nonnegative_index(columns: list[str], index: int) -> int:
    return index + len(columns) if index < 0 else index


def _has_both_columns(columns: list[str], word: int, tag: int) -> bool:
    return _nonnegative_index(columns, tag) != _nonnegative_index(columns, word) and 0 <= _nonnegative_index(
        columns, tag
    ) < len(columns)


def _read_field(path: Path, line: Line, index: int, field: str) -> str:
    number, columns = line
    place = _nonnegative_index(columns, index)
    if not 0 <= place < len(columns):
        raise InputError(
            f'{path}: line {number}: {len(columns)} columns; {field} is column {index + 1 if index >= 0 else index}'
        )
    if not columns[place]:
        raise InputError(f'{path}: line {number}: column {place + 1} is empty')
    return columns[place]


def _read_tag(path: Path, line: Line, index: int) -> str:
    """Returns the tag of a line without surrounding spaces, because a tag with spaces would be a separate class."""
    number, columns = line
    tag = _read_field(path, line, index, 'examples.label').strip()
    if not tag:
        raise InputError(f'{path}: line {number}: column {_nonnegative_index(columns, index) + 1} is empty')
    return tag


def _group_lines_by_sentence(lines: Iterable[Line | None]) -> Iterator[list[Line]]:
    """Groups the input lines into sentences; in the input, None stands after the last line of each sentence."""
    sentence: list[Line] = []
    for line in lines:
        if line is not None:
            sentence.append(line)
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _conll_lines(path: Path) -> Iterator[Line | None]:
    width = 0
    for number, line in read_lines(path):
        if not line.strip():
            yield None
            continue
        columns = line.split('\t') if '\t' in line else re.split(' +', line.strip(' '))
        is_marker = columns[0] == '-DOCSTART-'
        if not is_marker and width and len(columns) != width:
            raise InputError(f'{path}: line {number}: {len(columns)} columns where the lines before have {width}')
        width = width if is_marker else len(columns)
        yield number, columns


def _conllu_lines(path: Path) -> Iterator[Line | None]:
    for number, line in read_lines(path):
        columns = line.split('\t')
        if not line.strip():
            yield None
        elif not line.startswith('#'):
            if len(columns) != len(CONLLU):
                raise InputError(f'{path}: line {number}: {len(columns)} columns; CoNLL-U has {len(CONLLU)}')
            if columns[0].isdecimal():
                yield number, columns


def _sentence_from_json_row(config: ExamplesConfig, row: TableRow, *, is_test: bool) -> TaggedSentence:
    words = _string_list_field(row, config.text, 'examples.text')
    has_tags = not is_test or config.label in row.values
    tags = tuple(tag.strip() for tag in _string_list_field(row, config.label, 'examples.label')) if has_tags else None
    if tags is not None and len(tags) != len(words):
        raise InputError(
            f'{row.file_and_line}: {len(words)} words in {config.text!r} and {len(tags)} tags in {config.label!r}'
        )
    line = int(row.place.split()[-1])
    return TaggedSentence(row.file, (line,) * len(words), words, tags)


def _string_list_field(row: TableRow, column: str, field: str) -> tuple[str, ...]:
    value = row.column_value(column, field=field)
    if column in row.class_names and isinstance(value, list):
        value = [row.class_name(column, one) if isinstance(one, int) else one for one in value]
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one.strip() for one in value):
        raise InputError(f'{row.file_and_line}: field {column!r} is not a list of texts')
    return tuple(value)
