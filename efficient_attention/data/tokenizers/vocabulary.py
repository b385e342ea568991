"""Describes a tokenizer's vocabulary in plain numbers: its size, its special ids, and which pieces continue a word."""

import dataclasses
import string
from collections.abc import Collection
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from efficient_attention.data.tokenizers.special_tokens import ROLES, tokens_by_role
from efficient_attention.errors import InputError

# Characters that start a word: SentencePiece's space, and the byte-level space, newline, tab and return.
WORD_STARTS = ('▁', 'Ġ', 'Ċ', 'ĉ', 'č')


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The size and special ids of a tokenizer, for building training rows; -1 = the tokenizer lacks this token. Can be
    pickled."""

    size: int
    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]  # ids that are never masked, in rising order
    is_continuation: np.ndarray  # bool [V]: whether the piece continues a word


def vocabulary_of(tokenizer: Tokenizer, name: str, needed: Collection[str] = tuple(ROLES)) -> Vocabulary:
    """Returns the size and special ids of a tokenizer, after checking that the ids have no gaps and the needed special
    tokens exist.

    Args:
        tokenizer: any tokenizer.
        name: its file, for messages.
        needed: the special tokens that it must have, by the names of `ROLES`.

    Raises:
        InputError: ids repeat or leave gaps, or a special token in `needed` is missing; the message has `name`.
    """
    pieces = tokenizer.get_vocab(with_added_tokens=True)
    check_ids_contiguous(pieces, name)
    found = tokens_by_role(tokenizer)
    for role in needed:
        if role not in found:
            known = ', '.join(ROLES[role])
            raise InputError(f'tokenizer {name}: no {ROLES[role][0]} in its vocabulary (known names: {known})')
    roles = {role: pieces[found[role]] if role in found else -1 for role in ROLES}
    added = tokenizer.get_added_tokens_decoder()
    special = tuple(sorted({id for id, token in added.items() if token.special} | set(roles.values()) - {-1}))
    is_continuation = np.zeros(len(pieces), bool)
    continues = _continuation_rule(tokenizer)
    for piece, id in pieces.items():
        is_continuation[id] = id not in special and id not in added and continues(piece)
    return Vocabulary(size=len(pieces), **roles, special=special, is_continuation=is_continuation)


def readable_token(tokenizer: Tokenizer, vocabulary: Vocabulary, id: int) -> str:
    """Returns a token's text for people to read: a word unchanged, a piece inside a word with '##' in front, and white
    space in quotes.
    """
    decoded, piece = (
        tokenizer.decode([id], skip_special_tokens=False).replace('▁', ' '),
        tokenizer.id_to_token(id) or '',
    )
    text = decoded.strip() or piece
    if not decoded.strip() and piece and set(piece) <= set(WORD_STARTS):
        return repr(decoded or ' ')
    return f'##{text.removeprefix("##")}' if vocabulary.is_continuation[id] else text


def check_ids_contiguous(pieces: dict[str, int], name: str) -> None:
    """Raises an InputError with the tokenizer's name unless the ids are 0, 1, 2, ..., each exactly once."""
    ids = sorted(pieces.values())
    for expected, found in enumerate(ids):
        if found != expected:
            fault = f'no piece has id {expected}' if found > expected else f'two pieces have id {found}'
            raise InputError(f'tokenizer {name}: {fault}; ids must be 0 to {len(ids) - 1}, each once')


def _continuation_rule(tokenizer: Tokenizer) -> Any:
    """Returns a function that says whether a piece continues a word; the rule depends on the kind of tokenizer.

    Where spaces are marked, punctuation is a separate word, as in ALBERT's code, so masking a word masks no full stop.
    """
    if isinstance(tokenizer.model, models.WordPiece):
        return lambda piece: piece.startswith('##') and len(piece) > 2
    return lambda piece: not piece.startswith(WORD_STARTS) and any(c not in string.punctuation for c in piece)
