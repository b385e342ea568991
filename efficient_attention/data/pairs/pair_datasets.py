"""Reads datasets of source and target texts: two parallel files, two columns of a table, a TFDS dataset, or a toy
problem."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from efficient_attention.data.pairs.toy_problems import parse_toy_problem, toy_pairs
from efficient_attention.data.sources.tables import digest_tables, expand_table_names, read_tables
from efficient_attention.data.sources.text_files import digest_files, find_files, read_lines
from efficient_attention.errors import InputError, counted

KINDS: tuple[str, ...] = ('lines:<source file>,<target file>', 'table:<files>#<source column>,<target column>')
KINDS += ('tfds:<name>:<split>#<source column>,<target column>', 'toy:<problem>:<rows>:<shortest>-<longest>[:<seed>]')
KINDS += ('joined:<pairs>:<set>',)


class TextPair(NamedTuple):
    """A source text and its target text; `where` is their location in the files, for error messages."""

    source: str
    target: str
    where: str


@dataclasses.dataclass(frozen=True)
class PairDataset:
    """A dataset of source and target texts, as the config describes it.

    Attributes:
        kind: 'lines', 'table', 'tfds' or 'toy'.
        place: the files, or the text after 'toy:'.
        columns: source and target columns of a table; the two files of 'lines'.
        field: the config field, for messages.
        text: the dataset's text in the config.
        joined: number of consecutive pairs that are joined by spaces into one.
    """

    kind: str
    place: str
    columns: tuple[str, str]
    field: str
    text: str
    joined: int = 1

    def read_pairs(self) -> Iterator[TextPair]:
        """Returns the pairs of the dataset in order.

        Raises:
            InputError: a file cannot be read, the two files have different numbers of lines, a text is empty.
        """
        return (
            concatenate_consecutive_pairs(self.read_single_pairs(), self.joined)
            if self.joined > 1
            else self.read_single_pairs()
        )

    def read_single_pairs(self) -> Iterator[TextPair]:
        """Returns the pairs as the dataset lists them, without joining consecutive pairs into one.

        It raises InputError in the same cases as `read_pairs`.
        """
        if self.kind == 'toy':
            return (
                TextPair(*pair, f'toy:{self.place}') for pair in toy_pairs(parse_toy_problem(self.place, self.field))
            )
        return read_parallel_files(self) if self.kind == 'lines' else read_table_columns(self)

    def digest(self) -> str:
        """Returns a text that identifies the content of the dataset: a hash of its files; for a toy problem,
        the text that describes it in the config."""
        if self.joined > 1:
            return f'joined:{self.joined}:{dataclasses.replace(self, joined=1).digest()}'
        if self.kind == 'toy':
            return f'toy:{self.place}'
        if self.kind == 'lines':
            return digest_files([find_single_file(name, self.field) for name in self.columns])
        return ' '.join([digest_tables(expand_table_names(self.place)), *self.columns])


def parse_pair_datasets(text: str, field: str) -> list[PairDataset]:
    """Returns the datasets that a config's text lists, separated by ';'; error messages contain `field`, the name of
    the config field.

    Raises:
        InputError: a dataset has an unknown form.
    """
    return [parse_pair_dataset(part.strip(), field) for part in text.split(';') if part.strip()]


def parse_pair_dataset(text: str, field: str, others: tuple[str, ...] = ()) -> PairDataset:
    """Returns the dataset that a text such as 'lines:a.de,a.en' describes; raises InputError as
    `parse_pair_datasets`.

    `others`: further forms that the caller supports, for the message.
    """
    kind, _, rest = text.partition(':')
    if kind == 'joined':
        number, _, inner = rest.partition(':')
        if not number.isdecimal() or int(number) < 1:
            raise InputError(f'{field} has the set {text!r}; joined:<pairs>:<set> needs a number of at least 1')
        return dataclasses.replace(parse_pair_dataset(inner, field), text=text, joined=int(number))
    if kind == 'toy':
        parse_toy_problem(rest, field)
        return PairDataset(kind, rest, ('', ''), field, text)
    place, _, columns = ('', '', rest) if kind == 'lines' else rest.rpartition('#')
    names = tuple(name.strip() for name in columns.split(','))
    if kind not in ('lines', 'table', 'tfds') or len(names) != 2 or not all(names) or (kind != 'lines' and not place):
        raise InputError(f'{field} has the set {text!r}; known: {"; ".join((*KINDS, *others))}')
    return PairDataset(kind, f'tfds:{place}' if kind == 'tfds' else place, (names[0], names[1]), field, text)


def concatenate_consecutive_pairs(pairs: Iterable[TextPair], size: int) -> Iterator[TextPair]:
    """Joins every `size` consecutive pairs into one pair and yields it; the last joined pair may consist of fewer
    pairs."""
    pairs = iter(pairs)
    while some := list(itertools.islice(pairs, size)):
        source, target = (' '.join(text.strip() for text in side) for side in list(zip(*some, strict=True))[:2])
        yield TextPair(source, target, some[0].where)


def find_single_file(pattern: str, field: str) -> Path:
    """Returns the only file that a path or glob matches; raises InputError if none or several match."""
    try:
        files = find_files(pattern)
    except InputError as error:
        raise InputError(f'{field}: {error}') from None
    if len(files) > 1:
        raise InputError(
            f'{field}: {pattern!r} matches {len(files)} files; each side of parallel lines must be one file'
        )
    return files[0]


def read_parallel_files(pairs: PairDataset) -> Iterator[TextPair]:
    """Yields the pairs of two parallel files: line n of one file is the source, line n of the other file the target."""
    source, target = (find_single_file(name, pairs.field) for name in pairs.columns)
    for ours, theirs in itertools.zip_longest(read_lines(source), read_lines(target)):
        if ours is None or theirs is None:
            longer, number = (target, theirs[0]) if ours is None else (source, ours[0])
            shorter = source if ours is None else target
            raise InputError(f'{longer}: line {number} has no partner; {shorter} has {counted(number - 1, "line")}')
        yield check_pair_not_empty(
            TextPair(ours[1], theirs[1], f'{source}: line {ours[0]}'), (str(source), str(target)), ours[0]
        )


def check_pair_not_empty(pair: TextPair, files: tuple[str, str], number: int) -> TextPair:
    """Returns the pair unchanged; raises InputError if its source or target is empty."""
    for text, file in zip(pair[:2], files, strict=True):
        if not text.strip():
            raise InputError(f'{file}: line {number} is empty')
    return pair


def read_table_columns(pairs: PairDataset) -> Iterator[TextPair]:
    """Yields the pairs of a table, in which one column has the sources and another column the targets."""
    try:
        expand_table_names(pairs.place)
    except InputError as error:
        raise InputError(f'{pairs.field}: {error}') from None
    for row in read_tables(pairs.place):
        source, target = (row.column_text(column) for column in pairs.columns)
        yield TextPair(source, target, row.file_and_line)
