"""Reads the tokenizers of released Marian models: one SentencePiece model for sources, one for targets, and a shared
vocab.json."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models

from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.data.tokenizers.added_tokens import SETTINGS, added_tokens, read_tokenizer_settings
from efficient_attention.data.tokenizers.sentencepiece import piece_splitter
from efficient_attention.data.tokenizers.vocabulary import check_ids_contiguous
from efficient_attention.errors import InputError

SOURCE, TARGET, VOCABULARY = FILES = ('source.spm', 'target.spm', 'vocab.json')
END, UNKNOWN, PAD = SPECIALS = ('</s>', '<unk>', '<pad>')
CODE_BEGIN, CODE_END = '>>', '<<'  # These signs enclose the language code of a text, in multilingual models.


def is_marian(path: Path) -> bool:
    """Whether a path names a SentencePiece file of a Marian model (source.spm or target.spm)."""
    return path.name in (SOURCE, TARGET)


def marian_vocabulary(folder: Path) -> Tokenizer:
    """Loads the pieces and ids of a Marian model's vocab.json, as a tokenizer that can join pieces to text, but cannot
    split a text.

    Raises:
        InputError: the file is missing, has invalid ids, or lacks a special token; the message names it.
    """
    path = folder / VOCABULARY
    try:
        pieces = read_json_file(path)
    except OSError as error:
        raise InputError(f'tokenizer {path}: cannot be read ({error.strerror})') from None
    except ValueError as error:
        raise InputError(f'tokenizer {path}: not JSON ({error})') from None
    if not isinstance(pieces, dict) or not all(type(id) is int for id in pieces.values()):
        raise InputError(f'tokenizer {path}: it must give each piece its id, a whole number')
    lacking = [name for name in SPECIALS if name not in pieces]
    if lacking:
        raise InputError(f'tokenizer {path}: no {lacking[0]} in its vocabulary')
    check_ids_contiguous(pieces, str(path))
    check_marian_settings(folder, pieces)
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return tokenizer


def check_marian_settings(folder: Path, pieces: Mapping[str, int]) -> None:
    """Raises InputError if the settings of a Marian tokenizer ask for ids or a file layout that this module does not
    support."""
    settings = read_tokenizer_settings(folder)
    if settings.get('separate_vocabs'):
        raise InputError(f'{folder / SETTINGS}: separate_vocabs is True; read here: one vocabulary of both sides')
    unknown = [one.token.content for one in added_tokens(folder) if one.token.content not in pieces]
    if unknown:
        raise InputError(f'{folder}: its tokenizer has the added token {unknown[0]}, which {VOCABULARY} lacks')


@dataclasses.dataclass(frozen=True)
class MarianTokenizer:
    """Converts texts to ids as released Marian models do, for sources or for targets; a typed '</s>' is plain text.

    Attributes:
        path: the SentencePiece model of one side.
        vocabulary: the result of `marian_vocabulary`.
    """

    path: Path
    vocabulary: Tokenizer

    @functools.cached_property
    def sentencepiece_model(self) -> Tokenizer:
        """Returns the SentencePiece model of this tokenizer; raises InputError if it cannot be read."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise InputError(f'tokenizer {self.path}: cannot be read ({error.strerror})') from None
        return piece_splitter(data, str(self.path))

    def ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the ids of texts, without end tokens; a piece outside the vocabulary gets the id of <unk>."""
        known = self.vocabulary.get_vocab()
        return [[known.get(piece, known[UNKNOWN]) for piece, _ in self.pieces_with_text(text)] for text in texts]

    def pieces_with_text(self, text: str) -> list[tuple[str, str]]:
        """Splits a text into pieces; each piece comes with the part of the text that it encodes. A language code is one
        piece."""
        code, rest = split_language_code(text)
        encoding = self.sentencepiece_model.encode(rest, add_special_tokens=False)
        found = [(piece, rest[slice(*place)]) for piece, place in zip(encoding.tokens, encoding.offsets, strict=True)]
        return [(code, code), *found] if code else found


def split_language_code(text: str) -> tuple[str, str]:
    """Splits off the language code at the start of a text, such as '>>fra<<' ('' = none); returns the code and the rest
    of the text."""
    end = text.find(CODE_END) + len(CODE_END)
    if not text.startswith(CODE_BEGIN) or end < len(CODE_END):
        return '', text
    return text[:end], text[end:]
