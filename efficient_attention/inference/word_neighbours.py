"""Finds the nearest neighbours of words by word vectors, from a file of vectors or from a model's token embeddings."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.sources.text_files import read_lines
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.data.tokenizers.vocabulary import Vocabulary, readable_token, vocabulary_of
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import pretrained_encoder
from efficient_attention.interop.pretrained import open_encoder
from efficient_attention.models.encoder import Encoder

WORD = re.compile(r'[^\W\d_]+')
MOST_VECTORS = 100_000  # maximum number of words read from a file, which lists frequent words first


class WordVectors(Protocol):
    """The interface of word vectors: returns the vector of a word, and the words nearest to a vector."""

    def vector_of_word(self, word: str) -> np.ndarray | None:
        """Returns the vector of a word, float32 [E]; None if the word is unknown."""
        ...

    def neighbours(self, vector_E: np.ndarray, count: int, word: str) -> tuple[str, ...]:
        """Returns the `count` words with the highest cosine similarity to the vector, best first, without `word`
        itself.
        """
        ...


@dataclasses.dataclass(frozen=True)
class UnitWordVectors:
    """Word vectors of length 1, which are searched for the nearest neighbours of a vector."""

    words: tuple[str, ...]
    unit_VE: np.ndarray  # float32

    def neighbours(self, vector_E: np.ndarray, count: int, word: str) -> tuple[str, ...]:
        """Returns the `count` words with the highest cosine similarity to the vector, best first, without `word`
        itself.
        """
        cosines_V = self.unit_VE @ (vector_E / max(float(np.linalg.norm(vector_E)), 1e-12))
        best = np.argpartition(-cosines_V, min(count + 1, len(cosines_V) - 1))[: count + 1]
        best = best[np.argsort(-cosines_V[best], kind='stable')]
        return tuple(self.words[place] for place in best if self.words[place] != word)[:count]

    def vector_of_word(self, word: str) -> np.ndarray | None:
        """Returns the vector of a word, looked up as written or else in lower case; None if both forms are unknown."""
        place = self.word_rows.get(word, self.word_rows.get(word.lower()))
        return None if place is None else self.unit_VE[place]

    @functools.cached_property
    def word_rows(self) -> Mapping[str, int]:
        """The index of each word in the array of vectors."""
        return {word: place for place, word in enumerate(self.words)}


def read_vectors(path: Path) -> UnitWordVectors:
    """Returns the word vectors of a text file with a word and its numbers on each line, in the format of GloVe or
    word2vec.

    Raises:
        InputError: a line has no number, or another count of numbers than the first line; the message names the line.
    """
    words: list[str] = []
    rows: list[np.ndarray] = []
    for number, line in read_lines(path):
        fields = line.rstrip().split(' ')
        if number == 1 and len(fields) == 2:
            continue  # skips the header line of word2vec: word count and vector width
        wanted = len(rows[0]) if rows else len(fields) - 1
        word, numbers = parse_vector_line(fields, wanted)
        if not numbers:
            raise InputError(f'{path}: line {number}: {len(fields) - 1} numbers; line 1 has {wanted}')
        try:
            row = np.array(numbers, np.float32)
        except ValueError:
            raise InputError(f'{path}: line {number}: not a word and numbers') from None
        words.append(word)
        rows.append(row)
        if len(rows) == MOST_VECTORS:
            break
    if not rows:
        raise InputError(f'{path}: no vector in it')
    return unit_vectors(words, np.stack(rows))


def parse_vector_line(fields: Sequence[str], count: int) -> tuple[str, Sequence[str]]:
    """Returns the word and the `count` numbers of a line, as strings; ('', ()) if the line has another count of
    numbers.

    A few of GloVe's words contain spaces, but none of their later parts is a number.
    """
    parts, numbers = fields[: len(fields) - count], fields[len(fields) - count :]
    if not parts or not count or any(re.fullmatch(r'-?[\d.]*\d(e-?\d+)?', part) for part in parts[1:]):
        return '', ()
    return ' '.join(parts), numbers


def unit_vectors(words: Sequence[str], vectors_VE: np.ndarray) -> UnitWordVectors:
    """Returns the word vectors, each divided by its Euclidean length."""
    lengths_V = np.linalg.norm(vectors_VE, axis=-1, keepdims=True)
    return UnitWordVectors(tuple(words), (vectors_VE / np.maximum(lengths_V, 1e-12)).astype(np.float32))


class TokenTableVectors:
    """A model's token embeddings as word vectors: a word of several tokens gets the mean of their embeddings.

    The neighbours of a word are tokens that are whole words.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, encoder: Encoder) -> None:
        self.tokenizer, self.reader = tokenizer, make_plain_text_tokenizer(tokenizer)
        self.special = frozenset(vocabulary.special)
        self.table_VE = np.asarray(encoder.embeddings.token.table_vectors(np.float32))
        tokens, is_word = words_among_tokens(tokenizer, vocabulary)
        ids = np.flatnonzero(is_word)
        self.words = unit_vectors([tokens[id] for id in ids], self.table_VE[ids])

    def vector_of_word(self, word: str) -> np.ndarray | None:
        """Returns the mean embedding of the word's tokens; None if all of them are unknown."""
        ids = self.reader.encode(f' {word}', add_special_tokens=False).ids
        known = [id for id in ids if id not in self.special]
        return self.table_VE[known].mean(axis=0) if known else None

    def neighbours(self, vector_E: np.ndarray, count: int, word: str) -> tuple[str, ...]:
        """Returns the `count` words nearest to the vector, among tokens that are whole words."""
        return self.words.neighbours(vector_E, count, word)


def words_among_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> tuple[list[str], np.ndarray]:
    """Returns the readable text of each token, and bool [V]: whether each token is a whole word of letters."""
    tokens = [readable_token(tokenizer, vocabulary, id) for id in range(vocabulary.size)]
    is_word = np.array([WORD.fullmatch(token) is not None for token in tokens])
    is_word[list(vocabulary.special)] = False
    return tokens, is_word


def open_vectors(path: Path) -> WordVectors:
    """Returns word vectors from a text file, or from the token embeddings of a model if the path is a folder.

    Raises:
        InputError: a line is bad, or the folder lacks an encoder or a tokenizer; the message names it.
    """
    if not path.is_dir():
        return read_vectors(path)
    pretrained = open_encoder(path)
    if pretrained.tokenizer is None:
        raise InputError(f'{path}: no tokenizer there')
    tokenizer = load_tokenizer(pretrained.tokenizer, lowercase=pretrained.lowercase)
    vocabulary = vocabulary_of(tokenizer, str(pretrained.tokenizer))
    return TokenTableVectors(tokenizer, vocabulary, pretrained_encoder(pretrained))
