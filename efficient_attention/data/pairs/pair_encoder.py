"""Pairs of texts as token ids: prefix, lengths, and the symbols at their ends."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.pairs.pair_sets import TextPair
from efficient_attention.data.tokenizers.marian import MarianReader
from efficient_attention.data.tokenizers.reading import reader_of
from efficient_attention.data.tokenizers.special_tokens import role_names
from efficient_attention.data.tokenizers.text_to_text import Symbols, text_to_text_ids
from efficient_attention.errors import InputError

ENCODED_AT_ONCE = 4096  # pairs


@dataclasses.dataclass(frozen=True)
class EncodedPair:
    """A source and a target, int32 [M] and [L], each with its end; `where` they stand, and their number in the set."""

    source: np.ndarray
    target: np.ndarray
    where: str
    number: int = 0


@dataclasses.dataclass
class Overlong:
    """Pairs beyond a length: how many there were, and where the first one stands."""

    count: int = 0
    first: str = ''


def symbols_of(tokenizer: Tokenizer, start: str = '', begin: str = '', name: str = 'data.tokenizer') -> Symbols:
    """The symbols of a tokenizer by the names in use; `start` and `begin` name pieces, as in `PairsConfig`.

    `name` is the field that it is of, for messages.

    Raises:
        InputError: it has no padding, no end of a text, or no such piece.
    """
    of_side = '' if name == 'data.tokenizer' else f' ({name})'
    for field, piece in (('start', start), ('begin', begin)):
        if piece and tokenizer.token_to_id(piece) is None:
            raise InputError(f'pairs.{field} is {piece!r}, which the tokenizer lacks{of_side}')
    ids = text_to_text_ids(tokenizer, name, start=start)
    first = tokenizer.token_to_id(begin) if begin else None
    return Symbols(ids.pad, ids.end, ids.start, -1 if first is None else first)


@dataclasses.dataclass(frozen=True)
class SideEncoder:
    """From sources or targets to ids.

    Attributes:
        tokenizer: of this side.
        symbols: its symbols.
        length: most tokens of a text, its end included.
        is_reversed: whether the model reads its tokens from the last to the first; the symbols at its ends stay there.
        marian: what reads the texts of a released Marian, whose tokenizer only names pieces.
    """

    tokenizer: Tokenizer
    symbols: Symbols
    length: int
    is_reversed: bool = False
    marian: MarianReader | None = None

    @functools.cached_property
    def reader(self) -> Tokenizer:
        """Encodes texts: '</s>' in a text is text; the mask, sentinels and other added tokens stay whole."""
        mask = role_names(self.tokenizer).get('mask')
        return reader_of(self.tokenizer, () if mask is None else (mask,))

    def parts(self, text: str) -> list[tuple[str, str]]:
        """The pieces of a text, each with the part of the text that it stands for."""
        if self.marian is not None:
            return self.marian.parts(text)
        encoding = self.reader.encode(text, add_special_tokens=False)
        return [(piece, text[slice(*place)]) for piece, place in zip(encoding.tokens, encoding.offsets, strict=True)]

    def ids(self, texts: Iterable[str]) -> list[np.ndarray]:
        """The ids of texts, each with its end, of any length."""
        if self.marian is not None:
            return [self.symbols.around(ids) for ids in self.marian.ids(texts)]
        encoded = self.reader.encode_batch(list(texts), add_special_tokens=False)
        return [self.symbols.around(one.ids) for one in encoded]

    def cut(self, ids: np.ndarray) -> np.ndarray:
        """The first tokens of a text, and its end, in the order in which the model reads them."""
        ids = ids if len(ids) <= self.length else np.append(ids[: self.length - 1], np.int32(self.symbols.end))
        return ids[self.places(len(ids))]

    def places(self, length: int) -> np.ndarray:
        """Where each of the tokens that a model reads stands in its text, and conversely, with its ends counted."""
        places, first = np.arange(length), self.symbols.count - 1
        if self.is_reversed:
            places[first : length - 1] = places[first : length - 1][::-1]
        return places


@dataclasses.dataclass(frozen=True)
class PairEncoder:
    """From pairs of texts to ids.

    Attributes:
        source: of sources.
        target: of targets, with the same tokenizer or another.
        overlong: 'truncate', 'skip' or 'error'.
    """

    source: SideEncoder
    target: SideEncoder
    overlong: str = 'truncate'

    @property
    def symbols(self) -> tuple[Symbols, Symbols]:
        """Of sources and of targets."""
        return self.source.symbols, self.target.symbols

    @property
    def lengths(self) -> tuple[int, int]:
        """Most tokens of a source and of a target."""
        return self.source.length, self.target.length

    @property
    def limits(self) -> str:
        """The most tokens of both sides, in words."""
        return f'data.length {self.source.length} and pairs.target_length {self.target.length}'

    def encode(self, pairs: Iterable[TextPair], prefix: str, overlong: Overlong) -> Iterator[EncodedPair]:
        """The pairs as ids; those beyond a length are counted in `overlong`, and cut or left out.

        Raises:
            InputError: a pair is too long where that is an error.
        """
        pairs = list(pairs)
        for first in range(0, len(pairs), ENCODED_AT_ONCE):
            some = pairs[first : first + ENCODED_AT_ONCE]
            sources = self.source.ids(prefix + pair.source for pair in some)
            targets = self.target.ids(pair.target for pair in some)
            for number, pair, source, target in zip(itertools.count(first), some, sources, targets, strict=False):
                if len(source) > self.source.length or len(target) > self.target.length:
                    self.note(pair, len(source), len(target), overlong)
                    if self.overlong == 'skip':
                        continue
                yield EncodedPair(self.source.cut(source), self.target.cut(target), pair.where, number)

    def note(self, pair: TextPair, source: int, target: int, overlong: Overlong) -> None:
        """Counts a pair that is too long; raises InputError where that is an error."""
        if self.overlong == 'error':
            raise InputError(f'{pair.where}: {source} and {target} tokens, above {self.limits} (pairs.overlong)')
        overlong.count += 1
        overlong.first = overlong.first or pair.where
