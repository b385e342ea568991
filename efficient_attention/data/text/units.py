"""Units that a text is counted in, and text to ids and back: bytes, characters, words, tokenizer pieces, image bytes.

A new kind is a subclass, a line in `load_units` and one where units are learned (prepare.py).
"""

import abc
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.config.json_text import parse_json
from efficient_attention.data.preparation.cache_folder import TOKENIZER
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.reading import cut_at_blank_lines, reader_of
from efficient_attention.data.tokenizers.special_tokens import structural_tokens
from efficient_attention.data.tokenizers.text_to_text import text_to_text_ids
from efficient_attention.whole_files import write_atomically

CHARACTERS = 'characters.json'
WORDS = 'words.json'
END_OF_LINE = '<eos>'  # the name that the word-level language models of the literature give it
UNKNOWN_WORD = '<unk>'  # WikiText's own
SECTION = 2**22  # bytes or characters
SEPARATOR = '\n\n'  # between documents, where units are bytes or characters
Text = str | bytes  # bytes where units are bytes: a split may then end inside a character


class Units(abc.ABC):
    """A vocabulary and how text is written in it.

    Attributes:
        size: V, ids are 0 to V - 1.
        unknown: the id of what the vocabulary lacks; -1 where it lacks nothing.
        separator: ids between two documents.
        start: the id that stands before each document in a row and never in a text; -1 where there is none.
        text_of: how ids become text one after another: 'bytes' that complete characters, 'characters' each by itself,
            or 'pieces' whose text depends on those beside them.
        unwritten: ids with no text that separate nothing either, such as a tokenizer's [MASK].
    """

    size: int
    unknown: int
    separator: np.ndarray
    start: int = -1
    text_of: str = 'pieces'
    unwritten: tuple[int, ...] = ()

    @property
    def text_size(self) -> int:
        """How many ids a text can have: V, or one less where one of them is `start`."""
        return self.size - (self.start >= 0)

    def cut(self, text: Text) -> Iterator[Text]:
        """The text in sections that may be encoded one by one, so that memory does not grow with a document."""
        return (text[start : start + SECTION] for start in range(0, len(text), SECTION))

    @abc.abstractmethod
    def encode(self, text: Text) -> np.ndarray:
        """The ids of a text, one after another."""

    @abc.abstractmethod
    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, as far as the units keep it."""

    def written_parts(self, text: str) -> list[str]:
        """What a message about unknown parts of a text can list: its words, or its characters where these are units."""
        return text.split()

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes what `load_units` reads."""


class Bytes(Units):
    """The bytes of UTF-8: 256 ids, nothing unknown."""

    size = 256
    unknown = -1
    text_of = 'bytes'
    separator = np.frombuffer(SEPARATOR.encode(), np.uint8)

    def encode(self, text: Text) -> np.ndarray:
        """The bytes of the text as uint8 ids."""
        return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)

    def decode(self, ids: np.ndarray) -> str:
        """Bytes that are no UTF-8 become the replacement character."""
        return ids.astype(np.uint8).tobytes().decode(errors='replace')

    def save(self, folder: Path) -> None:
        """Writes nothing: bytes need no vocabulary."""


class Characters(Units):
    """Unicode code points: id 0 is any unknown one, the others stand in the order of their numbers."""

    unknown = 0
    text_of = 'characters'

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = ''.join(sorted(set(characters)))
        self.size = len(self.characters) + 1
        self._points = code_points(self.characters)
        self.separator = self.encode(SEPARATOR)

    def encode(self, text: Text) -> np.ndarray:
        """A uint32 id for each character."""
        points = code_points(text if isinstance(text, str) else text.decode())
        if not self.characters:
            return np.zeros(len(points), np.uint32)
        places = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        return np.where(self._points[places] == points, places + 1, self.unknown).astype(np.uint32)

    def decode(self, ids: np.ndarray) -> str:
        """Unknown ones become the replacement character."""
        known = '\N{REPLACEMENT CHARACTER}' + self.characters
        return ''.join(known[id] for id in ids)

    def written_parts(self, text: str) -> list[str]:
        """See `Units`: its characters."""
        return list(text)

    def save(self, folder: Path) -> None:
        """Writes all characters as one JSON text."""
        write_atomically(folder / CHARACTERS, json.dumps(self.characters) + '\n')


class Words(Units):
    """Words between white space, in the way of WikiText: <eos> ends each line, an empty one too, and has id 0.

    The others follow by falling frequency in the train split, ties in the order of their texts. <unk> stands for every
    word that is not among them and counts as often as that happens; a text may spell it out itself, as WikiText does.
    """

    separator = np.zeros(0, np.uint32)  # the end of a document's last line is enough

    def __init__(self, words: Iterable[str], *, lowercase: bool) -> None:
        self.words = tuple(words)
        self.lowercase = lowercase
        self.size = len(self.words)
        self._ids = {word: id for id, word in enumerate(self.words)}
        self.unknown = self._ids[UNKNOWN_WORD]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], *, min_count: int, lowercase: bool) -> 'Words':
        """All words that occur at least `min_count` times, from how often each one does."""
        words = {word: count for word, count in counts.items() if word not in (END_OF_LINE, UNKNOWN_WORD)}
        kept = {word: count for word, count in words.items() if count >= min_count}
        kept[UNKNOWN_WORD] = counts.get(UNKNOWN_WORD, 0) + sum(words.values()) - sum(kept.values())
        by_frequency = sorted(kept, key=lambda word: (-kept[word], word))
        return cls([END_OF_LINE, *by_frequency], lowercase=lowercase)

    def cut(self, text: Text) -> Iterator[Text]:
        """Sections of whole lines; the last line of a document ends, too."""
        return cut_lines(text if isinstance(text, str) else text.decode())

    def encode(self, text: Text) -> np.ndarray:
        """uint32, one a word and one a line end."""
        words = split_words(text if isinstance(text, str) else text.decode(), lowercase=self.lowercase)
        return np.fromiter((self._ids.get(word, self.unknown) for word in words), np.uint32)

    def decode(self, ids: np.ndarray) -> str:
        """Words with a space between them, lines with a line break; how the spaces were is not kept."""
        lines = ' '.join(self.words[id] if id else '\n' for id in ids).split('\n')
        return '\n'.join(line.strip(' ') for line in lines)

    def save(self, folder: Path) -> None:
        """All words in the order of their ids, as JSON, and whether they are lower-cased."""
        content = {'lowercase': self.lowercase, 'words': self.words}
        write_atomically(folder / WORDS, json.dumps(content, ensure_ascii=False) + '\n')


class Pixels(Units):
    """The bytes of images, row by row, each pixel's channels together; 256 stands before an image's first byte."""

    size = 257
    unknown = -1
    separator = np.zeros(0, np.uint8)
    start = 256

    def encode(self, text: Text) -> np.ndarray:
        """The bytes of the text as uint8 ids."""
        assert isinstance(text, bytes)
        return np.frombuffer(text, np.uint8)

    def decode(self, ids: np.ndarray) -> str:
        """The bytes in hexadecimal digits: an image is no text."""
        return ids.astype(np.uint8).tobytes().hex()

    def save(self, folder: Path) -> None:
        """Writes nothing: bytes need no vocabulary."""


class TokenizerPieces(Units):
    """A tokenizer's pieces, with its [SEP] or end of text between documents. Most do not keep all of a text."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        pieces = tokenizer.get_vocab()
        ids = text_to_text_ids(tokenizer, name)
        self.tokenizer = tokenizer
        self.reader = reader_of(tokenizer)
        self.size = len(pieces)
        self.unknown = -1 if ids.unknown is None else ids.unknown
        self.separator = np.array([ids.end], np.uint32)
        structural = {pieces[token] for token in structural_tokens(tokenizer)}
        self.unwritten = tuple(sorted(structural - {ids.end}))

    def cut(self, text: Text) -> Iterator[Text]:
        """Whole: the tokenizer reads its sections in parallel."""
        yield text

    def encode(self, text: Text) -> np.ndarray:
        """The uint32 ids of the pieces; a long text is cut at blank lines and its sections are read in parallel."""
        sections = list(cut_at_blank_lines(text if isinstance(text, str) else text.decode()))
        encodings = self.reader.encode_batch_fast(sections, add_special_tokens=False)
        return np.fromiter(itertools.chain.from_iterable(encoding.ids for encoding in encodings), np.uint32)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids: the tokenizer's, without structural tokens, and with tokens that an author added."""
        left_out = {*self.unwritten, *self.separator.tolist()}
        return self.tokenizer.decode([id for id in ids.tolist() if id not in left_out], skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Writes the tokenizer as a tokenizer.json."""
        write_atomically(folder / TOKENIZER, self.tokenizer.to_str(pretty=True))


def code_points(text: str) -> np.ndarray:
    """uint32, the number of each character."""
    return np.frombuffer(text.encode('utf-32-le'), '<u4')


def cut_lines(text: str, size: int = SECTION) -> Iterator[str]:
    """The text in sections of `size` characters or a line more, each ending with a line break."""
    start = 0
    while start < len(text):
        end = text.find('\n', start + size - 1) + 1 or len(text)
        section = text[start:end]
        yield section if section.endswith('\n') else section + '\n'
        start = end


def split_words(text: str, *, lowercase: bool) -> list[str]:
    """The words of a text, and <eos> for each line break; a word that is spelt so is the same."""
    text = text.lower() if lowercase else text
    return text.replace('\n', f' {END_OF_LINE} ').split()


def load_units(kind: str, folder: Path) -> Units:
    """The units that `save` wrote, of a kind in `data.units`; raises KeyError for a kind that there is none of."""
    tokenizer = folder / TOKENIZER
    load: dict[str, Callable[[], Units]] = {
        'bytes': Bytes,
        'characters': lambda: Characters(parse_json((folder / CHARACTERS).read_text(encoding='utf-8'))),
        'words': lambda: Words(**parse_json((folder / WORDS).read_text(encoding='utf-8'))),
        'pixels': Pixels,
        'tokenizer': lambda: TokenizerPieces(load_tokenizer(tokenizer, lowercase=True), str(tokenizer)),
    }
    return load[kind]()
