"""Converts text to ids and back; one id is a byte, a character, a word, a tokenizer piece, or a byte of an image.

To add a kind of units, write a subclass of `TextUnits`. Then add a line to `load_units`, and a line to the code in
prepare.py that learns units.
"""

import abc
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.json_parsing import parse_json
from efficient_attention.data.preparation.cache_folder import TOKENIZER
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import cut_at_blank_lines, make_plain_text_tokenizer
from efficient_attention.data.tokenizers.special_tokens import structural_tokens
from efficient_attention.data.tokenizers.text_to_text_special_ids import find_text_to_text_special_ids

CHARACTERS = 'characters.json'
WORDS = 'words.json'
END_OF_LINE = '<eos>'  # usual name of the end-of-line token in papers on word-level language models
UNKNOWN_WORD = '<unk>'  # name of the unknown word, as in WikiText
SECTION = 2**22  # size of a section that is encoded at once, in bytes or characters
SEPARATOR = '\n\n'  # separates documents if the units are bytes or characters
Text = str | bytes  # Text is `bytes` if the units are bytes, because a split may then end inside a character.


class TextUnits(abc.ABC):
    """Base class of the units of a language model: a vocabulary, and the conversion between text and ids.

    Attributes:
        size: V, ids are 0 to V - 1.
        unknown: the id of text outside the vocabulary; -1 if there is no such text.
        separator: ids between two documents.
        start: the id before each document in a row, which no text has; -1 = none.
        text_of: how ids become text: 'bytes' = several ids may form a character, 'characters' = each id separately,
            or 'pieces' = the text of an id depends on its neighbours.
        unwritten: ids that have no text and separate nothing, such as a tokenizer's [MASK].
    """

    size: int
    unknown: int
    separator: np.ndarray
    start: int = -1
    text_of: str = 'pieces'
    unwritten: tuple[int, ...] = ()

    @property
    def text_vocabulary_size(self) -> int:
        """Returns the number of ids that can occur in texts: the vocabulary size, minus 1 if one id is reserved for
        `start`."""
        return self.size - (self.start >= 0)

    def split_into_sections(self, text: Text) -> Iterator[Text]:
        """Yields sections of a text that can be encoded separately, so that memory does not grow with the length of a
        document."""
        return (text[start : start + SECTION] for start in range(0, len(text), SECTION))

    @abc.abstractmethod
    def encode(self, text: Text) -> np.ndarray:
        """Returns the ids of a text."""

    @abc.abstractmethod
    def decode(self, ids: np.ndarray) -> str:
        """Converts ids to text, as far as the units preserve the text."""

    def split_for_messages(self, text: str) -> list[str]:
        """Splits a text into the words or characters that a message can list if they are unknown."""
        return text.split()

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the vocabulary files that `load_units` reads."""


class ByteUnits(TextUnits):
    """Text as the bytes of UTF-8: 256 ids, and no text is unknown."""

    size = 256
    unknown = -1
    text_of = 'bytes'
    separator = np.frombuffer(SEPARATOR.encode(), np.uint8)

    def encode(self, text: Text) -> np.ndarray:
        """Returns the bytes of the text as uint8 ids."""
        return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)

    def decode(self, ids: np.ndarray) -> str:
        """Decodes bytes as UTF-8 text; invalid bytes become the replacement character."""
        return ids.astype(np.uint8).tobytes().decode(errors='replace')

    def save(self, folder: Path) -> None:
        """Writes nothing, because bytes need no vocabulary."""


class CharacterUnits(TextUnits):
    """Text as Unicode code points; all unknown characters share id 0, and the known characters are sorted by code
    point."""

    unknown = 0
    text_of = 'characters'

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = ''.join(sorted(set(characters)))
        self.size = len(self.characters) + 1
        self._points = code_points(self.characters)
        self.separator = self.encode(SEPARATOR)

    def encode(self, text: Text) -> np.ndarray:
        """Returns the id of each character, uint32."""
        points = code_points(text if isinstance(text, str) else text.decode())
        if not self.characters:
            return np.zeros(len(points), np.uint32)
        places = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        return np.where(self._points[places] == points, places + 1, self.unknown).astype(np.uint32)

    def decode(self, ids: np.ndarray) -> str:
        """Converts ids to text; unknown characters become the replacement character."""
        known = '\N{REPLACEMENT CHARACTER}' + self.characters
        return ''.join(known[id] for id in ids)

    def split_for_messages(self, text: str) -> list[str]:
        """Splits a text into characters, for messages about unknown characters."""
        return list(text)

    def save(self, folder: Path) -> None:
        """Writes all characters of the vocabulary as one JSON string."""
        write_atomically(folder / CHARACTERS, json.dumps(self.characters) + '\n')


class WordUnits(TextUnits):
    """Text as words between white space, as in WikiText; <eos> ends each line, even an empty one, and has id 0.

    The other words are sorted by falling frequency in the train split, then by text. <unk> replaces every word outside
    the vocabulary, and its frequency counts these words. A text may contain a literal <unk>, as WikiText does.
    """

    # Word units need no separator, because the end of a document's last line separates documents.
    separator = np.zeros(0, np.uint32)

    def __init__(self, words: Iterable[str], *, lowercase: bool) -> None:
        self.words = tuple(words)
        self.lowercase = lowercase
        self.size = len(self.words)
        self._ids = {word: id for id, word in enumerate(self.words)}
        self.unknown = self._ids[UNKNOWN_WORD]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], *, min_count: int, lowercase: bool) -> 'WordUnits':
        """Returns a vocabulary of all words that occur at least `min_count` times."""
        words = {word: count for word, count in counts.items() if word not in (END_OF_LINE, UNKNOWN_WORD)}
        kept = {word: count for word, count in words.items() if count >= min_count}
        kept[UNKNOWN_WORD] = counts.get(UNKNOWN_WORD, 0) + sum(words.values()) - sum(kept.values())
        by_frequency = sorted(kept, key=lambda word: (-kept[word], word))
        return cls([END_OF_LINE, *by_frequency], lowercase=lowercase)

    def split_into_sections(self, text: Text) -> Iterator[Text]:
        """Yields sections of whole lines; if the last line of a document has no line break, adds one."""
        return cut_lines(text if isinstance(text, str) else text.decode())

    def encode(self, text: Text) -> np.ndarray:
        """Returns one id per word and one id per line break, uint32."""
        words = split_words(text if isinstance(text, str) else text.decode(), lowercase=self.lowercase)
        return np.fromiter((self._ids.get(word, self.unknown) for word in words), np.uint32)

    def decode(self, ids: np.ndarray) -> str:
        """Converts ids to words, separated by single spaces, and line breaks; the original spaces are lost."""
        lines = ' '.join(self.words[id] if id else '\n' for id in ids).split('\n')
        return '\n'.join(line.strip(' ') for line in lines)

    def save(self, folder: Path) -> None:
        """Writes all words in the order of their ids as JSON, and whether words are lower-cased."""
        content = {'lowercase': self.lowercase, 'words': self.words}
        write_atomically(folder / WORDS, json.dumps(content, ensure_ascii=False) + '\n')


class PixelUnits(TextUnits):
    """Images as bytes, row by row with interleaved channels; id 256 comes before the first byte of an image."""

    size = 257
    unknown = -1
    separator = np.zeros(0, np.uint8)
    start = 256

    def encode(self, text: Text) -> np.ndarray:
        """Returns the bytes of the images as uint8 ids."""
        assert isinstance(text, bytes)
        return np.frombuffer(text, np.uint8)

    def decode(self, ids: np.ndarray) -> str:
        """Converts ids to hexadecimal digits, because an image is no text."""
        return ids.astype(np.uint8).tobytes().hex()

    def save(self, folder: Path) -> None:
        """Writes nothing, because bytes need no vocabulary."""


class TokenizerUnits(TextUnits):
    """Text as the pieces of a tokenizer, with its [SEP] or end-of-text token between documents; most tokenizers lose
    some characters."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        pieces = tokenizer.get_vocab()
        ids = find_text_to_text_special_ids(tokenizer, name)
        self.tokenizer = tokenizer
        self.reader = make_plain_text_tokenizer(tokenizer)
        self.size = len(pieces)
        self.unknown = -1 if ids.unknown is None else ids.unknown
        self.separator = np.array([ids.end], np.uint32)
        structural = {pieces[token] for token in structural_tokens(tokenizer)}
        self.unwritten = tuple(sorted(structural - {ids.end}))

    def split_into_sections(self, text: Text) -> Iterator[Text]:
        """Yields the whole text as one section, because `encode` cuts it and encodes its sections in parallel."""
        yield text

    def encode(self, text: Text) -> np.ndarray:
        """Returns the ids of a text's pieces, uint32; a long text is cut at blank lines, and its sections are encoded
        in parallel."""
        sections = list(cut_at_blank_lines(text if isinstance(text, str) else text.decode()))
        encodings = self.reader.encode_batch_fast(sections, add_special_tokens=False)
        return np.fromiter(itertools.chain.from_iterable(encoding.ids for encoding in encodings), np.uint32)

    def decode(self, ids: np.ndarray) -> str:
        """Converts ids to text with the tokenizer; drops structural tokens such as [SEP], and the space that some
        tokenizers put before a text. Keeps tokens that a checkpoint's author added."""
        text = self.decode_pieces(ids)
        return text[1:] if text.startswith(' ') and self._adds_space else text

    @functools.cached_property
    def _adds_space(self) -> bool:
        """Whether the tokenizer puts a space before a text, so that the first word is cut like later words."""
        return self.decode_pieces(self.encode('a')).startswith(' ')

    def decode_pieces(self, ids: np.ndarray) -> str:
        """Converts ids to text like `decode`, but keeps the space that the tokenizer puts before a text."""
        left_out = {*self.unwritten, *self.separator.tolist()}
        return self.tokenizer.decode([id for id in ids.tolist() if id not in left_out], skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Writes the tokenizer to tokenizer.json."""
        write_atomically(folder / TOKENIZER, self.tokenizer.to_str(pretty=True))


def code_points(text: str) -> np.ndarray:
    """Returns the code point of each character, uint32 [l]."""
    return np.frombuffer(text.encode('utf-32-le'), '<u4')


def cut_lines(text: str, size: int = SECTION) -> Iterator[str]:
    """Yields sections of at least `size` characters, extended to the next line break; each section ends with a line
    break."""
    start = 0
    while start < len(text):
        end = text.find('\n', start + size - 1) + 1 or len(text)
        section = text[start:end]
        yield section if section.endswith('\n') else section + '\n'
        start = end


def split_words(text: str, *, lowercase: bool) -> list[str]:
    """Returns the words of a text, with <eos> for each line break; a literal <eos> in the text is the same word."""
    text = text.lower() if lowercase else text
    return text.replace('\n', f' {END_OF_LINE} ').split()


def load_units(kind: str, folder: Path) -> TextUnits:
    """Loads the units that `save` wrote; `kind` is a value of `data.units`, and any other value raises KeyError."""
    tokenizer = folder / TOKENIZER
    load: dict[str, Callable[[], TextUnits]] = {
        'bytes': ByteUnits,
        'characters': lambda: CharacterUnits(parse_json((folder / CHARACTERS).read_text(encoding='utf-8'))),
        'words': lambda: WordUnits(**parse_json((folder / WORDS).read_text(encoding='utf-8'))),
        'pixels': PixelUnits,
        'tokenizer': lambda: TokenizerUnits(load_tokenizer(tokenizer, lowercase=True), str(tokenizer)),
    }
    return load[kind]()
