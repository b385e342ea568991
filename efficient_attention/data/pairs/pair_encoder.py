"""Encodes source and target texts as token ids; adds a prefix and begin and end tokens, and applies the length
limits."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.data.tokenizers.marian import MarianTokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.data.tokenizers.special_tokens import tokens_by_role
from efficient_attention.data.tokenizers.text_to_text_special_ids import (
    SequenceSpecialIds,
    find_text_to_text_special_ids,
)
from efficient_attention.errors import InputError

ENCODED_AT_ONCE = 4096  # number of pairs that are encoded at a time


@dataclasses.dataclass(frozen=True)
class EncodedPair:
    """A source and a target as token ids with end tokens, int32 [source tokens] and [target tokens]; with their
    location in the files and their number in the dataset."""

    source: np.ndarray
    target: np.ndarray
    where: str
    number: int = 0


@dataclasses.dataclass
class OverlongPairs:
    """The number of pairs above a length limit, and where the first of them is in the files."""

    count: int = 0
    first: str = ''


def special_ids_of_tokenizer(
    tokenizer: Tokenizer, start: str = '', begin: str = '', name: str = 'data.tokenizer'
) -> SequenceSpecialIds:
    """Returns the special ids of a tokenizer, found by common names; `start` and `begin` are the fields of
    `PairsConfig`.

    `name` is the config field of the tokenizer, for messages.

    Raises:
        InputError: the tokenizer has no padding, no end of a text, or not the named piece.
    """
    of_side = '' if name == 'data.tokenizer' else f' ({name})'
    for field, piece in (('start', start), ('begin', begin)):
        if piece and tokenizer.token_to_id(piece) is None:
            raise InputError(f'pairs.{field} is {piece!r}, which the tokenizer lacks{of_side}')
    ids = find_text_to_text_special_ids(tokenizer, name, start=start)
    first = tokenizer.token_to_id(begin) if begin else None
    return SequenceSpecialIds(ids.pad, ids.end, ids.start, -1 if first is None else first)


@dataclasses.dataclass(frozen=True)
class SourceOrTargetEncoder:
    """Encodes either source texts or target texts as token ids.

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
        """Returns a tokenizer for user texts: a typed '</s>' is plain text; the mask, sentinels and tokens that the
        checkpoint's author added stay whole."""
        mask = tokens_by_role(self.tokenizer).get('mask')
        return make_plain_text_tokenizer(self.tokenizer, () if mask is None else (mask,))

    def pieces_with_text(self, text: str) -> list[tuple[str, str]]:
        """Returns the pieces of a text; each piece comes with the part of the text that it encodes."""
        if self.marian is not None:
            return self.marian.pieces_with_text(text)
        encoding = self.plain_text_tokenizer.encode(text, add_special_tokens=False)
        return [(piece, text[slice(*place)]) for piece, place in zip(encoding.tokens, encoding.offsets, strict=True)]

    def ids(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Returns the ids of each text with begin and end tokens, without a length limit."""
        if self.marian is not None:
            return [self.symbols.add_special_ids(ids) for ids in self.marian.ids(texts)]
        encoded = self.plain_text_tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [self.symbols.add_special_ids(one.ids) for one in encoded]

    def truncate_ids(self, ids: np.ndarray) -> np.ndarray:
        """Cuts token ids that exceed the length limit and ends them with an end token; puts the ids into the model's
        reading order."""
        ids = ids if len(ids) <= self.length else np.append(ids[: self.length - 1], np.int32(self.symbols.end))
        return ids[self.reversed_positions(len(ids))]

    def reversed_positions(self, length: int) -> np.ndarray:
        """Returns, for each token in the model's reading order, its position in the original text with begin and end
        tokens."""
        places, first = np.arange(length), self.symbols.special_id_count - 1
        if self.is_reversed:
            places[first : length - 1] = places[first : length - 1][::-1]
        return places


@dataclasses.dataclass(frozen=True)
class PairEncoder:
    """Encodes pairs of source and target texts as token ids.

    Attributes:
        source: encoder of sources.
        target: encoder of targets, with the same or another tokenizer.
        overlong: 'truncate', 'skip' or 'error'.
    """

    source: SourceOrTargetEncoder
    target: SourceOrTargetEncoder
    overlong: str = 'truncate'

    @property
    def special_ids(self) -> tuple[SequenceSpecialIds, SequenceSpecialIds]:
        """Returns the special ids of the source tokenizer and of the target tokenizer."""
        return self.source.symbols, self.target.symbols

    @property
    def lengths(self) -> tuple[int, int]:
        """Returns the maximum length of a source and the maximum length of a target, in tokens."""
        return self.source.length, self.target.length

    @property
    def limits(self) -> str:
        """Returns the length limits of sources and targets, as a text for error messages."""
        return f'data.length {self.source.length} and pairs.target_length {self.target.length}'

    def encode(self, pairs: Iterable[TextPair], prefix: str, overlong: OverlongPairs) -> Iterator[EncodedPair]:
        """Yields the pairs as token ids; pairs above a length limit are counted in `overlong`, and cut or skipped.

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
        """Counts a pair that is too long; raises InputError if the config forbids such pairs."""
        if self.overlong == 'error':
            raise InputError(f'{pair.where}: {source} and {target} tokens, above {self.limits} (pairs.overlong)')
        overlong.count += 1
        overlong.first = overlong.first or pair.where
