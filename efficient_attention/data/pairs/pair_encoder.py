"""Pairs of texts as token ids: prefix, lengths, and the symbols at their ends."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.pairs.pair_sets import TextPair
from efficient_attention.data.tokenizers.text_to_text import text_to_text_ids
from efficient_attention.errors import InputError

ENCODED_AT_ONCE = 4096  # pairs


@dataclasses.dataclass(frozen=True)
class Symbols:
    """Ids of padding, of a text's end, of what a decoder reads first, and of what every text begins with (-1: none)."""

    pad: int
    end: int
    start: int
    begin: int = -1


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


def symbols_of(tokenizer: Tokenizer, start: str = '', begin: str = '') -> Symbols:
    """The symbols of a tokenizer by the names in use; `start` and `begin` name pieces, as in `PairsConfig`.

    Raises:
        InputError: it has no padding, no end of a text, or no such piece.
    """
    for name, piece in (('start', start), ('begin', begin)):
        if piece and tokenizer.token_to_id(piece) is None:
            raise InputError(f'pairs.{name} is {piece!r}, which the tokenizer lacks')
    ids = text_to_text_ids(tokenizer, 'data.tokenizer', start=start)
    first = tokenizer.token_to_id(begin) if begin else None
    return Symbols(ids.pad, ids.end, ids.start, -1 if first is None else first)


@dataclasses.dataclass(frozen=True)
class PairEncoder:
    """From texts to ids.

    Attributes:
        tokenizer: of both sides.
        symbols: its symbols.
        source_length: most tokens of a source, its end included.
        target_length: most tokens of a target, its end included.
        overlong: 'truncate', 'skip' or 'error'.
    """

    tokenizer: Tokenizer
    symbols: Symbols
    source_length: int
    target_length: int
    overlong: str = 'truncate'

    def source_ids(self, texts: Iterable[str]) -> list[np.ndarray]:
        """The ids of sources or targets, each with its end, of any length."""
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        before = [self.symbols.begin] if self.symbols.begin >= 0 else []
        return [np.array([*before, *one.ids, self.symbols.end], np.int32) for one in encoded]

    def encode(self, pairs: Iterable[TextPair], prefix: str, overlong: Overlong) -> Iterator[EncodedPair]:
        """The pairs as ids; those beyond a length are counted in `overlong`, and cut or left out.

        Raises:
            InputError: a pair is too long where that is an error.
        """
        pairs = list(pairs)
        for first in range(0, len(pairs), ENCODED_AT_ONCE):
            some = pairs[first : first + ENCODED_AT_ONCE]
            sources = self.source_ids(prefix + pair.source for pair in some)
            targets = self.source_ids(pair.target for pair in some)
            for number, pair, source, target in zip(itertools.count(first), some, sources, targets, strict=False):
                if len(source) > self.source_length or len(target) > self.target_length:
                    self.note(pair, len(source), len(target), overlong)
                    if self.overlong == 'skip':
                        continue
                cut = self.cut(source, self.source_length), self.cut(target, self.target_length)
                yield EncodedPair(*cut, pair.where, number)

    def note(self, pair: TextPair, source: int, target: int, overlong: Overlong) -> None:
        """Counts a pair that is too long; raises InputError where that is an error."""
        if self.overlong == 'error':
            limits = f'data.length {self.source_length} and pairs.target_length {self.target_length}'
            raise InputError(f'{pair.where}: {source} and {target} tokens, above {limits} (pairs.overlong)')
        overlong.count += 1
        overlong.first = overlong.first or pair.where

    def cut(self, ids: np.ndarray, length: int) -> np.ndarray:
        """The first tokens of a text, and its end."""
        return ids if len(ids) <= length else np.append(ids[: length - 1], np.int32(self.symbols.end))
