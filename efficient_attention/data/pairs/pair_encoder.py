"""Encodes pairs of texts as token ids, with prefix, length limits, and begin and end symbols."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.data.tokenizers.marian import MarianTokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.data.tokenizers.special_tokens import role_names
from efficient_attention.data.tokenizers.text_to_text import SequenceSpecialIds, text_to_text_ids
from efficient_attention.errors import InputError

ENCODED_AT_ONCE = 4096  # pairs encoded at a time


@dataclasses.dataclass(frozen=True)
class EncodedPair:
    """A source and a target, int32 [M] and [L], with end symbols, their location `where`, and their dataset number."""

    source: np.ndarray
    target: np.ndarray
    where: str
    number: int = 0


@dataclasses.dataclass
class OverlongPairs:
    """Pairs above a length limit: their count, and the location of the first one in the files."""

    count: int = 0
    first: str = ''


def special_ids_of_tokenizer(
    tokenizer: Tokenizer, start: str = '', begin: str = '', name: str = 'data.tokenizer'
) -> SequenceSpecialIds:
    """Returns the special ids of a tokenizer, found by common names; `start` and `begin` are as in `PairsConfig`.

    `name` is the config field of the tokenizer, for messages.

    Raises:
        InputError: the tokenizer has no padding, no end of a text, or not the named piece.
    """
    of_side = '' if name == 'data.tokenizer' else f' ({name})'
    for field, piece in (('start', start), ('begin', begin)):
        if piece and tokenizer.token_to_id(piece) is None:
            raise InputError(f'pairs.{field} is {piece!r}, which the tokenizer lacks{of_side}')
    ids = text_to_text_ids(tokenizer, name, start=start)
    first = tokenizer.token_to_id(begin) if begin else None
    return SequenceSpecialIds(ids.pad, ids.end, ids.start, -1 if first is None else first)


@dataclasses.dataclass(frozen=True)
class SideEncoder:
    """An encoder from source texts, or from target texts, to ids.

    Attributes:
        tokenizer: the tokenizer of this side.
        symbols: special ids of the tokenizer.
        length: most tokens of a text, end symbol included.
        is_reversed: whether the model reads texts from the last token to the first; begin and end symbols do not move.
        marian: the text reader of a released Marian model, whose tokenizer only names pieces.
    """

    tokenizer: Tokenizer
    symbols: SequenceSpecialIds
    length: int
    is_reversed: bool = False
    marian: MarianTokenizer | None = None

    @functools.cached_property
    def plain_text_tokenizer(self) -> Tokenizer:
        """Returns a tokenizer for user texts: '</s>' in a text is text; mask, sentinels, added tokens stay whole."""
        mask = role_names(self.tokenizer).get('mask')
        return make_plain_text_tokenizer(self.tokenizer, () if mask is None else (mask,))

    def pieces_with_text(self, text: str) -> list[tuple[str, str]]:
        """Returns the pieces of a text, each with its part of the text."""
        if self.marian is not None:
            return self.marian.pieces_with_text(text)
        encoding = self.plain_text_tokenizer.encode(text, add_special_tokens=False)
        return [(piece, text[slice(*place)]) for piece, place in zip(encoding.tokens, encoding.offsets, strict=True)]

    def ids(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Returns the ids of texts, each with its end symbol, without length limit."""
        if self.marian is not None:
            return [self.symbols.add_special_ids(ids) for ids in self.marian.ids(texts)]
        encoded = self.plain_text_tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [self.symbols.add_special_ids(one.ids) for one in encoded]

    def truncate_ids(self, ids: np.ndarray) -> np.ndarray:
        """Returns the token ids, cut to the length limit with an end symbol, in the model's reading order."""
        ids = ids if len(ids) <= self.length else np.append(ids[: self.length - 1], np.int32(self.symbols.end))
        return ids[self.reversed_positions(len(ids))]

    def reversed_positions(self, length: int) -> np.ndarray:
        """Returns the text position of each token that the model reads (its own inverse); ends are included."""
        places, first = np.arange(length), self.symbols.special_id_count - 1
        if self.is_reversed:
            places[first : length - 1] = places[first : length - 1][::-1]
        return places


@dataclasses.dataclass(frozen=True)
class PairEncoder:
    """An encoder from pairs of texts to ids.

    Attributes:
        source: encoder of sources.
        target: encoder of targets, with the same or another tokenizer.
        overlong: 'truncate', 'skip' or 'error'.
    """

    source: SideEncoder
    target: SideEncoder
    overlong: str = 'truncate'

    @property
    def special_ids(self) -> tuple[SequenceSpecialIds, SequenceSpecialIds]:
        """Returns the special ids of the source and target tokenizers."""
        return self.source.symbols, self.target.symbols

    @property
    def lengths(self) -> tuple[int, int]:
        """Returns the most tokens of a source and of a target."""
        return self.source.length, self.target.length

    @property
    def limits(self) -> str:
        """Returns the length limits of sources and targets, as text for messages."""
        return f'data.length {self.source.length} and pairs.target_length {self.target.length}'

    def encode(self, pairs: Iterable[TextPair], prefix: str, overlong: OverlongPairs) -> Iterator[EncodedPair]:
        """Yields the pairs as ids; counts pairs above a limit in `overlong`, and cuts or skips them.

        Raises:
            InputError: a pair is too long and `overlong` of this encoder is 'error'.
        """
        pairs = list(pairs)
        for first in range(0, len(pairs), ENCODED_AT_ONCE):
            some = pairs[first : first + ENCODED_AT_ONCE]
            sources = self.source.ids(prefix + pair.source for pair in some)
            targets = self.target.ids(pair.target for pair in some)
            for number, pair, source, target in zip(itertools.count(first), some, sources, targets, strict=False):
                if len(source) > self.source.length or len(target) > self.target.length:
                    self.count_overlong_pair(pair, len(source), len(target), overlong)
                    if self.overlong == 'skip':
                        continue
                yield EncodedPair(
                    self.source.truncate_ids(source), self.target.truncate_ids(target), pair.where, number
                )

    def count_overlong_pair(self, pair: TextPair, source: int, target: int, overlong: OverlongPairs) -> None:
        """Counts a pair that is too long; raises InputError if such pairs are an error."""
        if self.overlong == 'error':
            raise InputError(f'{pair.where}: {source} and {target} tokens, above {self.limits} (pairs.overlong)')
        overlong.count += 1
        overlong.first = overlong.first or pair.where
