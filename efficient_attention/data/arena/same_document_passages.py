"""Generates pairs of passages, given as bytes: class 1 if both are from one document, class 0 if from two documents.

This task is specific to this project. It replaces Long Range Arena's retrieval task, whose data is not available. It
avoids hints at the class: both passages are from one collection, do not overlap, and have single spaces as only white
space, because line breaks identify editions. The first and last twentieth of a long document, where front matter and
licences are, is not used. Different documents may be by one author. In documents hardly longer than two passages, a
pair from one document is closer to the ends than other pairs: choose long documents. Each document is in one split.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from efficient_attention.data.arena.dataset_interface import (
    SPLITS,
    ArenaDataset,
    ArenaRow,
    DatasetOptions,
    row_random_generator,
)
from efficient_attention.data.preparation.held_out_documents import document_hash
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.errors import InputError

# A hash of a document's text selects its split. The test split has twice as many documents as the dev split.
# With few documents, a test accuracy is uncertain, however many pairs are sampled from them.
TENTHS = {'train': range(7), 'dev': range(7, 8), 'test': range(8, 10)}
SOURCE = 'source of passages'  # name of the passages' source in error messages
LONG = 20_000  # If a document has at least this many bytes, both of its ends are removed.
EDGE = 20  # one twentieth of a long document is removed at each end


@dataclasses.dataclass(frozen=True, eq=False)
class PassagePairSampler:
    """A sampler of passage pairs from the documents of a split that are long enough for two passages.

    Attributes:
        documents: their bytes, each a uint8 array.
        length: bytes of a passage.
    """

    documents: tuple[np.ndarray, ...]
    length: int

    def row(self, seed: int, split: str, index: int) -> ArenaRow:
        """Returns the pair with number `index`; all documents are equally likely, and both classes are equally
        likely."""
        rng = row_random_generator(seed, split, index)
        label, first = int(rng.integers(2)), int(rng.integers(len(self.documents)))
        if label:
            return ArenaRow(self._two_disjoint_passages(self.documents[first], rng), 1)
        other = (first + 1 + int(rng.integers(len(self.documents) - 1))) % len(self.documents)
        return ArenaRow(
            (self._random_passage(self.documents[first], rng), self._random_passage(self.documents[other], rng)), 0
        )

    def _random_passage(self, document: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._passage_at(document, int(rng.integers(len(document) - self.length + 1)))

    def _two_disjoint_passages(self, document: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Returns two disjoint passages in random order; two adjacent passages are half as likely as any other pair."""
        places = np.sort(rng.integers(0, len(document) - 2 * self.length + 1, 2)) + [0, self.length]
        return tuple(self._passage_at(document, int(place)) for place in rng.permutation(places))

    def _passage_at(self, document: np.ndarray, start: int) -> np.ndarray:
        return document[start : start + self.length].astype(np.uint16)


def passage_pair_sampler(documents: Iterable[str], split: str, length: int, source: str) -> PassagePairSampler:
    """Returns a sampler of passage pairs from the documents that belong to a split.

    Raises:
        InputError: fewer than two documents of the split are long enough; the message names `source` and the split.
    """
    assert split in SPLITS
    found = tuple(
        document
        for text in dict.fromkeys(documents)  # Documents with equal texts count as one document.
        if document_hash(text) % 10 in TENTHS[split] and len(document := document_bytes(text)) >= 2 * length
    )
    if len(found) < 2:
        raise InputError(
            f'{source}: {len(found)} documents of the split {split!r} have two passages of {length} bytes; two are '
            'needed: shorten the passages or name more documents'
        )
    return PassagePairSampler(found, length)


def document_bytes(text: str) -> np.ndarray:
    """Returns the bytes of a document (uint8 [l]) with single spaces as white space; the ends of a long document are
    removed."""
    data = np.frombuffer(' '.join(text.split()).encode(), np.uint8)
    edge = len(data) // EDGE if len(data) >= LONG else 0
    return data[edge : len(data) - edge]


@dataclasses.dataclass(frozen=True)
class SameDocumentPassages(ArenaDataset):
    """A dataset of passage pairs, sampled from the documents of a text source."""

    kind = 'passages'
    vocabulary = 'bytes'
    texts = 2
    rules = 3
    count: int
    length: int
    seed: int
    source: str

    def digest(self, split: str) -> str:  # noqa: ARG002  all splits read the same source
        """Returns a hash of the documents of the text source, which is the same for all splits."""
        return open_source(self.source, SOURCE).digest()

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the passage pairs of a split."""
        passages = passage_pair_sampler(open_source(self.source, SOURCE).documents(), split, self.length, self.source)
        return (passages.row(self.seed, split, index) for index in range(self.count))


def passage_pairs_dataset(options: DatasetOptions) -> SameDocumentPassages:
    """Returns the dataset of passage pairs with these options; raises InputError if an option is missing or out of
    range."""
    count, seed = options.integer_option('rows', 1), options.integer_option('seed', 0, 0)
    return SameDocumentPassages(
        options.text, count, options.integer_option('length', 1), seed, options.required_text('source')
    )
