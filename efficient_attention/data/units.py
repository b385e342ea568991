"""What is a text counted in? Bytes, characters or a tokenizer's pieces: each turns text into ids and back.

A new kind, such as words, is a subclass, a line in `load_units` and one where units are learned (prepare_text.py).
"""

import abc
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.corpus import TOKENIZER
from efficient_attention.data.encoding import cut_pieces
from efficient_attention.data.tokenizers import vocabulary_of

CHARACTERS = 'characters.json'
PART = 2**22  # bytes or characters
SEPARATOR = '\n\n'  # between documents, where units are bytes or characters
Text = str | bytes  # bytes where units are bytes: a split may then end inside a character


class Units(abc.ABC):
    """A vocabulary and how text is written in it.

    Attributes:
        size: V, ids are 0 to V - 1.
        unknown: the id of what the vocabulary lacks; -1 where it lacks nothing.
        separator: ids between two documents.
    """

    size: int
    unknown: int
    separator: np.ndarray

    def cut(self, text: Text) -> Iterator[Text]:
        """The text in parts that may be encoded one by one, so that memory does not grow with a document."""
        return (text[start : start + PART] for start in range(0, len(text), PART))

    @abc.abstractmethod
    def encode(self, text: Text) -> np.ndarray:
        """The ids of a text, one after another."""

    @abc.abstractmethod
    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, as far as the units keep it."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes what `load_units` reads."""


class Bytes(Units):
    """The bytes of UTF-8: 256 ids, nothing unknown."""

    size = 256
    unknown = -1
    separator = np.frombuffer(SEPARATOR.encode(), np.uint8)

    def encode(self, text: Text) -> np.ndarray:
        """uint8, one a byte."""
        return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)

    def decode(self, ids: np.ndarray) -> str:
        """Bytes that are no UTF-8 become the replacement character."""
        return ids.astype(np.uint8).tobytes().decode(errors='replace')

    def save(self, folder: Path) -> None:
        """There is nothing to write."""


class Characters(Units):
    """Unicode code points: id 0 is any unknown one, the others stand in the order of their numbers."""

    unknown = 0

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = ''.join(sorted(set(characters)))
        self.size = len(self.characters) + 1
        self._points = code_points(self.characters)
        self.separator = self.encode(SEPARATOR)

    def encode(self, text: Text) -> np.ndarray:
        """uint32, one a character."""
        points = code_points(text if isinstance(text, str) else text.decode())
        if not self.characters:
            return np.zeros(len(points), np.uint32)
        places = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        return np.where(self._points[places] == points, places + 1, self.unknown).astype(np.uint32)

    def decode(self, ids: np.ndarray) -> str:
        """Unknown ones become the replacement character."""
        known = '\N{REPLACEMENT CHARACTER}' + self.characters
        return ''.join(known[id] for id in ids)

    def save(self, folder: Path) -> None:
        """All characters as one JSON text."""
        (folder / CHARACTERS).write_text(json.dumps(self.characters) + '\n', encoding='utf-8')


class Pieces(Units):
    """A tokenizer's pieces; documents are separated by its [SEP]. Most tokenizers do not keep all of a text."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        vocabulary = vocabulary_of(tokenizer, name)
        tokenizer.encode_special_tokens = True  # '[SEP]' in a text is text
        self.tokenizer = tokenizer
        self.size = vocabulary.size
        self.unknown = vocabulary.unknown
        self.separator = np.array([vocabulary.sep], np.uint32)
        self._mended = np.arange(vocabulary.size, dtype=np.uint32)
        self._mended[list(vocabulary.special)] = vocabulary.unknown  # a unigram model may find '<pad>' in a text

    def cut(self, text: Text) -> Iterator[Text]:
        """Whole: the tokenizer reads its parts in parallel."""
        yield text

    def encode(self, text: Text) -> np.ndarray:
        """uint32; a long text is cut at blank lines."""
        pieces = list(cut_pieces(text if isinstance(text, str) else text.decode()))
        encodings = self.tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        ids = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
        return self._mended[np.fromiter(ids, np.uint32)]

    def decode(self, ids: np.ndarray) -> str:
        """As the tokenizer does, without special tokens."""
        return self.tokenizer.decode(ids.tolist())

    def save(self, folder: Path) -> None:
        """A tokenizer.json."""
        self.tokenizer.save(str(folder / TOKENIZER))


def code_points(text: str) -> np.ndarray:
    """uint32, the number of each character."""
    return np.frombuffer(text.encode('utf-32-le'), '<u4')


def load_units(kind: str, folder: Path) -> Units:
    """The units that `save` wrote, of a kind in `data.units`; raises KeyError for a kind that there is none of."""
    load: dict[str, Callable[[], Units]] = {
        'bytes': Bytes,
        'characters': lambda: Characters(json.loads((folder / CHARACTERS).read_text(encoding='utf-8'))),
        'tokenizer': lambda: Pieces(Tokenizer.from_file(str(folder / TOKENIZER)), str(folder / TOKENIZER)),
    }
    return load[kind]()
