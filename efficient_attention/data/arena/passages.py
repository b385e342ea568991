"""Passages: two pieces of one document (class 1) or of two (class 0), as bytes; a document is of one split alone.

A task of this project, which needs no data that cannot be had: the offline stand-in for Long Range Arena's retrieval.
What would give a class away is avoided as far as can be: both passages are of one collection of documents, they do not
overlap, white space is one space each time, since how often lines are broken tells one edition from another, and the
first and the last twentieth of a long document, where front matter and licences stand, is passed over. Documents of
one author are drawn as any others. Where documents are hardly longer than two passages, two of one stand nearer to its
ends than two of different ones do: name long documents.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from efficient_attention.data.arena.arena_row import SPLITS, ArenaRow, ArenaSet, SetOptions, row_stream
from efficient_attention.data.preparation.held_out_documents import document_hash
from efficient_attention.data.sources.source import open_source
from efficient_attention.errors import InputError

# Of the documents, by a hash of their text. Twice as many to test as to validate: a score on few documents, however
# many pairs are drawn from them, is one of few differences between documents.
TENTHS = {'train': range(7), 'dev': range(7, 8), 'test': range(8, 10)}
SOURCE = 'source of passages'  # as a message names it
LONG = 20_000  # bytes, from which on the ends of a document are passed over
EDGE = 20  # one part of so many at each end


@dataclasses.dataclass(frozen=True, eq=False)
class Passages:
    """The documents of a split that hold two passages.

    Attributes:
        documents: their bytes, each a uint8 array.
        length: bytes of a passage.
    """

    documents: tuple[np.ndarray, ...]
    length: int

    def row(self, seed: int, split: str, index: int) -> ArenaRow:
        """Row number `index`: each document is as likely, and each class."""
        rng = row_stream(seed, split, index)
        label, first = int(rng.integers(2)), int(rng.integers(len(self.documents)))
        if label:
            return ArenaRow(self._two_of(self.documents[first], rng), 1)
        other = (first + 1 + int(rng.integers(len(self.documents) - 1))) % len(self.documents)
        return ArenaRow((self._one_of(self.documents[first], rng), self._one_of(self.documents[other], rng)), 0)

    def _one_of(self, document: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._piece(document, int(rng.integers(len(document) - self.length + 1)))

    def _two_of(self, document: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Two that do not overlap, in either order; a pair without a gap is half as likely as each other pair."""
        places = np.sort(rng.integers(0, len(document) - 2 * self.length + 1, 2)) + [0, self.length]
        return tuple(self._piece(document, int(place)) for place in rng.permutation(places))

    def _piece(self, document: np.ndarray, start: int) -> np.ndarray:
        return document[start : start + self.length].astype(np.uint16)


def passages_of(documents: Iterable[str], split: str, length: int, source: str) -> Passages:
    """The passages of a split of these documents.

    Raises:
        InputError: fewer than two of its documents are long enough; names `source` and the split.
    """
    assert split in SPLITS
    found = tuple(
        document
        for text in dict.fromkeys(documents)  # a text that comes twice is one document
        if document_hash(text) % 10 in TENTHS[split] and len(document := body_of(text)) >= 2 * length
    )
    if len(found) < 2:
        raise InputError(
            f'{source}: {len(found)} documents of the split {split!r} have two passages of {length} bytes; two are '
            'needed: shorten the passages or name more documents'
        )
    return Passages(found, length)


def body_of(text: str) -> np.ndarray:
    """A document's bytes, words a space apart, without the ends of a long one; uint8 [l]."""
    data = np.frombuffer(' '.join(text.split()).encode(), np.uint8)
    edge = len(data) // EDGE if len(data) >= LONG else 0
    return data[edge : len(data) - edge]


@dataclasses.dataclass(frozen=True)
class PassagePairs(ArenaSet):
    """Pairs of passages out of the documents of a source."""

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


def passages_set(options: SetOptions) -> PassagePairs:
    """The set of these options; raises InputError where one is missing or out of range."""
    count, seed = options.number('rows', 1), options.number('seed', 0, 0)
    return PassagePairs(options.text, count, options.number('length', 1), seed, options.word('source'))
