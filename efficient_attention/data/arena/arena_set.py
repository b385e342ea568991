"""Sets of rows of long-range tasks, by a short text: 'listops:rows=2000:length=500-2000:seed=0' and the like.

    listops:rows=<n>:length=<shortest>-<longest>[:seed=<n>]     both lengths excluded, as Long Range Arena draws them
    pathfinder:rows=<n>:size=<16|20|32|64|128|256>[:bars=<easy|intermediate|hard|n>][:distractors=<n>]
        [:starts=<drawn|fixed>][:seed=<n>]
    recall:rows=<n>:length=<words>:pairs=<n>[:keys=<n>][:values=<n>][:seed=<n>]
    passages:rows=<n>:length=<bytes>[:seed=<n>]:source=<stdlib, text:<glob>, ... as data.source>
    imdb:folder=<with train/{neg,pos} and test/{neg,pos}>       bytes; a tenth of train validates
    cifar10:folder=<with train/<class> and test/<class>>        grey 32 x 32 images; a tenth of train validates
    listops:folder=<with basic_{train,val,test}.tsv>            the released rows of Long Range Arena
    pathfinder:folder=<with metadata/*.npy and imgs/>           its pictures; 80, 10, 10 % of them in their order
    aan:folder=<with new_aan_pairs.{train,eval,test}.tsv>       pairs of texts, bytes

Source and folder stand at the end: they may have colons. The split is that of the config's field. A generated row is a
function of (seed, split, its number) alone.
"""

import abc
import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from efficient_attention.data.arena.arena_row import ArenaRow, ArenaSet, is_of_split, row_stream
from efficient_attention.data.arena.file_sets import CitationPairs, Images, Pictures, Reviews, Tables
from efficient_attention.data.arena.listops import listops_row
from efficient_attention.data.arena.passages import passages_of
from efficient_attention.data.arena.pathfinder import FEWER_BARS, SIZES, bars_of, pathfinder_image
from efficient_attention.data.arena.recall import recall_row
from efficient_attention.data.sources.source import open_source
from efficient_attention.data.tokenizers.fixed import RECALL_KEYS, RECALL_VALUES
from efficient_attention.errors import InputError

NUMBER = re.compile(r'\d{1,9}')
LAST = re.compile(r'(?:^|:)(source|folder)=(.*)', re.DOTALL)
RANGE = re.compile(r'(\d{1,9})-(\d{1,9})')
SOURCE = 'source of passages'  # as a message names it


@dataclasses.dataclass(frozen=True)
class Generated(ArenaSet):
    """Rows that each follow from the seed, the split and their number."""

    count: int
    seed: int

    @abc.abstractmethod
    def row(self, split: str, index: int) -> ArenaRow:
        """One row of a split."""

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        return (self.row(split, index) for index in range(self.count))


@dataclasses.dataclass(frozen=True)
class ListOps(Generated):
    """See listops.py."""

    kind = 'listops'
    vocabulary = 'listops'
    shortest: int
    longest: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The ten digits."""
        return tuple(map(str, range(10)))

    def row(self, split: str, index: int) -> ArenaRow:
        """See `Generated`."""
        return listops_row(self.seed, split, index, self.shortest, self.longest)


@dataclasses.dataclass(frozen=True)
class Pathfinder(Generated):
    """See pathfinder.py; the grey values of an image row by row, 1 where the discs are ends of one path.

    Of few pixels, or with fixed starts, there are few images, some of which would be drawn for two splits: there each
    split has those of its hash.
    """

    kind = 'pathfinder'
    vocabulary = 'grey'
    size: int
    bars: int
    distractors: int | None
    fixed: bool

    def row(self, split: str, index: int) -> ArenaRow:
        """See `Generated`."""
        rng = row_stream(self.seed, split, index)
        while True:
            image = pathfinder_image(rng, self.size, self.bars, distractors=self.distractors, fixed=self.fixed)
            pixels = image.pixels.reshape(-1).astype('u2')
            if not (self.fixed or self.size in FEWER_BARS) or is_of_split(pixels, split):
                return ArenaRow((pixels,), int(image.label))


@dataclasses.dataclass(frozen=True)
class Recall(Generated):
    """See recall.py."""

    kind = 'recall'
    vocabulary = 'recall'
    length: int
    pairs: int
    keys: int
    values: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The values."""
        return tuple(f'v{number}' for number in range(self.values))

    def row(self, split: str, index: int) -> ArenaRow:
        """See `Generated`."""
        return recall_row(self.seed, split, index, self.length, self.pairs, keys=self.keys, values=self.values)


@dataclasses.dataclass(frozen=True)
class PassagePairs(ArenaSet):
    """See passages.py."""

    kind = 'passages'
    vocabulary = 'bytes'
    texts = 2
    rules = 3
    count: int
    length: int
    seed: int
    source: str

    def digest(self, split: str) -> str:  # noqa: ARG002  all splits are parts of them
        """See `ArenaSet`; of the documents."""
        return open_source(self.source, SOURCE).digest()

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        passages = passages_of(open_source(self.source, SOURCE).documents(), split, self.length, self.source)
        return (passages.row(self.seed, split, index) for index in range(self.count))


class Options:
    """The options of a set's text, taken one by one."""

    def __init__(self, text: str, field: str, values: Mapping[str, str]) -> None:
        self.text, self.field, self.left = text, field, dict(values)

    def fault(self, what: str) -> InputError:
        """One line that names the field, the set and what is wrong in it."""
        return InputError(f'{self.field} is {self.text!r}; {what}')

    def word(self, name: str) -> str:
        """A text that must be there."""
        if not self.left.get(name):
            close = difflib.get_close_matches(name, self.left, n=1)
            hint = f'; {close[0]!r} is no option' if close and close[0] != name else ''
            raise self.fault(f'{name}=... is missing{hint}')
        return self.left.pop(name)

    def number(self, name: str, least: int, default: int | None = None) -> int:
        """A whole number of at least `least`."""
        if default is not None and name not in self.left:
            return default
        found = self.word(name)
        if not NUMBER.fullmatch(found) or int(found) < least:
            raise self.fault(f'{name} must be a whole number of at least {least}')
        return int(found)

    def end(self) -> None:
        """Raises InputError where an option is left over."""
        if self.left:
            raise self.fault(f'it has no option {next(iter(self.left))!r}')


def open_set(text: str, field: str) -> ArenaSet:
    """The set of a short text, as above.

    Args:
        text: of a config's field.
        field: its name, for messages.

    Raises:
        InputError: unknown kind or option, or a number out of range; names the field and what is wrong.
    """
    kind, _, rest = text.partition(':')
    last = LAST.search(rest)
    parts = [part.partition('=') for part in rest[: last and last.start()].strip(':').split(':') if part]
    values = {name: value for name, _, value in parts}
    options = Options(text, field, values | ({last[1]: last[2]} if last else {}))
    if kind not in KINDS:
        raise options.fault(f'known kinds of rows: {", ".join(KINDS)}')
    if len(values) < len(parts):
        raise options.fault('an option comes twice')
    found = KINDS[kind](options)
    options.end()
    return found


def _folder(options: Options) -> Path:
    return Path(options.word('folder')).expanduser()


def _listops(options: Options) -> ArenaSet:
    if 'folder' in options.left:
        return Tables(options.text, _folder(options))
    count, seed = options.number('rows', 1), options.number('seed', 0, 0)
    match = RANGE.fullmatch(options.word('length'))
    if match is None or not 0 <= int(match[1]) < int(match[2]) - 1:
        raise options.fault('length must be <shortest>-<longest>, with a whole number between them')
    if int(match[2]) <= 4:
        raise options.fault('length must let in a tree of at least 4 words: an operator, two digits, a bracket')
    return ListOps(options.text, count, seed, int(match[1]), int(match[2]))


def _pathfinder(options: Options) -> ArenaSet:
    if 'folder' in options.left:
        return Pictures(options.text, _folder(options))
    count, seed = options.number('rows', 1), options.number('seed', 0, 0)
    size = options.number('size', 1)
    if size not in SIZES:
        raise options.fault(f'size must be one of {", ".join(map(str, SIZES))}')
    named, bars = options.left.get('bars', 'hard'), bars_of(size)
    count_of_bars = bars[options.left.pop('bars', named)] if named in bars else options.number('bars', 2)
    distractors = options.number('distractors', 0) if 'distractors' in options.left else None
    starts = options.left.pop('starts', 'drawn')
    if starts not in ('drawn', 'fixed'):
        raise options.fault('starts must be drawn or fixed')
    if starts == 'fixed' and size == min(SIZES):
        raise options.fault(f'starts must be drawn with size {size}, which has few images with fixed ones')
    return Pathfinder(options.text, count, seed, size, count_of_bars, distractors, starts == 'fixed')


def _recall(options: Options) -> ArenaSet:
    count, seed = options.number('rows', 1), options.number('seed', 0, 0)
    length, pairs = options.number('length', 3), options.number('pairs', 1)
    keys, values = options.number('keys', 1, RECALL_KEYS), options.number('values', 2, RECALL_VALUES)
    for name, number, most in (('keys', keys, RECALL_KEYS), ('values', values, RECALL_VALUES)):
        if number > most:
            raise options.fault(f'{name} must be at most {most}')
    if pairs > min(keys, length - 2):  # without filler there may be too few rows for some split to have one
        raise options.fault(
            f'pairs must be at most {keys}, the keys, and {length - 2}: the query and filler have a word each'
        )
    return Recall(options.text, count, seed, length, pairs, keys, values)


def _passages(options: Options) -> ArenaSet:
    count, seed = options.number('rows', 1), options.number('seed', 0, 0)
    return PassagePairs(options.text, count, options.number('length', 1), seed, options.word('source'))


KINDS: dict[str, Callable[[Options], ArenaSet]] = {
    'listops': _listops,
    'pathfinder': _pathfinder,
    'recall': _recall,
    'passages': _passages,
    'imdb': lambda options: Reviews(options.text, _folder(options)),
    'cifar10': lambda options: Images(options.text, _folder(options)),
    'aan': lambda options: CitationPairs(options.text, _folder(options)),
}
