"""Finds the special ids that the task text_to_text needs in a tokenizer, which may lack an encoder's [CLS] or
[MASK]."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer, processors

from efficient_attention.data.tokenizers.special_tokens import ROLES, SENTINEL, TEXT_ENDS, tokens_by_role
from efficient_attention.data.tokenizers.vocabulary import check_ids_contiguous
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class SequenceSpecialIds:
    """Special ids of a source or target: padding, end of a text, the decoder's first input, and begin of every text (-1
    = none)."""

    pad: int
    end: int
    start: int
    begin: int = -1

    @property
    def special_id_count(self) -> int:
        """Returns the number of special tokens that a source or a target has."""
        return 1 + (self.begin >= 0)

    def add_special_ids(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Adds begin and end tokens to a text's tokens; returns int32."""
        return np.array([*([self.begin] if self.begin >= 0 else []), *tokens, self.end], np.int32)


@dataclasses.dataclass(frozen=True)
class TextToTextSpecialIds:
    """The special ids of a tokenizer for the task text_to_text; can be pickled."""

    name: str  # path of the tokenizer's file, for error messages
    size: int
    pad: int
    start: int  # id of the decoder's first input
    end: int
    unknown: int | None  # id of the unknown piece; None = the pieces can express every text
    mask: int | None
    sentinels: tuple[int, ...]  # ids of the sentinels: for the first removed span, for the second, and so on

    def check_sentinels(self, count: int) -> None:
        """Raises InputError if the tokenizer has fewer than `count` sentinels."""
        if len(self.sentinels) < count:
            has = f'{len(self.sentinels)} sentinels ({SENTINEL.format(0)}, ...)' if self.sentinels else 'no sentinels'
            raise InputError(f'tokenizer {self.name}: {has} in its vocabulary; {count} are needed')

    def check_fits_vocab_size(self, vocab_size: int) -> None:
        """Raises InputError if the tokenizer has more pieces than a model's vocabulary."""
        if self.size <= vocab_size:
            return
        beyond = [number for number, id in enumerate(self.sentinels) if id >= vocab_size]
        also = f', its sentinel {SENTINEL.format(beyond[0])} among those beyond' if beyond else ''
        raise InputError(f'tokenizer {self.name}: it has {self.size} pieces{also}; the model has {vocab_size}')


def find_text_to_text_special_ids(tokenizer: Tokenizer, name: str, *, start: str = '') -> TextToTextSpecialIds:
    """Finds the special ids of a tokenizer, such as one from `load_tokenizer(..., is_text_to_text=True)`.

    Args:
        tokenizer: must have an end of text; in a tokenizer like GPT-2's, '<|endoftext|>' replaces all missing symbols.
        name: the tokenizer's file, for messages.
        start: first input piece of the decoder, such as BART's '</s>'; '' = [CLS] or its equivalent, else padding, as
            in T5.

    Raises:
        InputError: ids that repeat or leave gaps, no end, no padding, or no such start; the message has `name`.
    """
    pieces = tokenizer.get_vocab(with_added_tokens=True)
    check_ids_contiguous(pieces, name)
    found = {role: pieces[token] for role, token in tokens_by_role(tokenizer).items()}
    end = special_token_id(pieces, 'sep', found.get('sep'), name)
    pad = special_token_id(pieces, 'pad', found.get('pad'), name)
    first = found.get('cls', pad)
    if start:
        if start not in pieces:
            raise InputError(f'tokenizer {name}: no {start} in its vocabulary; it was named as first token of targets')
        first = pieces[start]
    return TextToTextSpecialIds(
        name, len(pieces), pad, first, end, found.get('unknown'), found.get('mask'), sentinel_ids(pieces)
    )


def with_begin_and_end_tokens(tokenizer: Tokenizer, *, begin: str, end: int) -> Tokenizer:
    """Returns a copy of a tokenizer that encodes a text as text_to_text does in training: the token `begin`, if any,
    the pieces, the token `end`.

    Without this change, a tokenizer that was trained here would add an encoder's special tokens.
    """
    last, before = tokenizer.id_to_token(end) or '', [begin] if begin else []
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single=[*before, '$A', last],
        pair=[*before, '$A', last, '$B', last],
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in dict.fromkeys([*before, last])],
    )
    return copy


def special_token_id(pieces: dict[str, int], role: str, found: int | None, name: str) -> int:
    """Returns the id of the special token for a role; in a vocabulary like GPT-2's, which has no such token, returns
    the id of the end of text."""
    if found is not None:
        return found
    end = next((token for token in TEXT_ENDS if token in pieces), None)
    if end is None:
        raise InputError(f'tokenizer {name}: no {" or ".join(ROLES[role])} in its vocabulary')
    return pieces[end]


def sentinel_ids(pieces: dict[str, int]) -> tuple[int, ...]:
    """Returns the ids of <extra_id_0>, <extra_id_1>, ..., up to the first sentinel that is missing."""
    found: list[int] = []
    while (piece := SENTINEL.format(len(found))) in pieces:
        found.append(pieces[piece])
    return tuple(found)
