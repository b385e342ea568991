"""A tokenizer's pieces in numbers: how many there are, which are special, which continue a word."""

import dataclasses
import string
from collections.abc import Collection
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from efficient_attention.data.tokenizers.special_tokens import ROLES, role_names
from efficient_attention.errors import InputError

WORD_STARTS = ('▁', 'Ġ', 'Ċ', 'ĉ', 'č')  # SentencePiece's space; byte-level space, newline, tab and return


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """What building examples needs to know of a tokenizer: plain numbers, picklable; -1 for a token that it lacks."""

    size: int
    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]  # ids that are never masked, sorted
    is_continuation: np.ndarray  # bool [V]: the piece continues the word before it


def vocabulary_of(tokenizer: Tokenizer, name: str, needed: Collection[str] = tuple(ROLES)) -> Vocabulary:
    """What building examples needs to know of a tokenizer, after checking it.

    Args:
        tokenizer: any.
        name: the file it came from, for messages.
        needed: the special tokens that it must have, by the names of `ROLES`.

    Raises:
        InputError: ids that repeat or leave gaps, or a special token that is needed is missing; names `name`.
    """
    pieces = tokenizer.get_vocab(with_added_tokens=True)
    check_ids(pieces, name)
    found = role_names(tokenizer)
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


def readable(tokenizer: Tokenizer, vocabulary: Vocabulary, id: int) -> str:
    """A token's text for people: a whole word as it is, a piece inside a word with '##' in front."""
    text = tokenizer.decode([id], skip_special_tokens=False).strip() or tokenizer.id_to_token(id) or ''
    return f'##{text.removeprefix("##")}' if vocabulary.is_continuation[id] else text


def check_ids(pieces: dict[str, int], name: str) -> None:
    """Raises InputError, which names `name`, unless the ids are 0, 1, ... once each."""
    ids = sorted(pieces.values())
    for expected, found in enumerate(ids):
        if found != expected:
            fault = f'no piece has id {expected}' if found > expected else f'two pieces have id {found}'
            raise InputError(f'tokenizer {name}: {fault}; ids must be 0 to {len(ids) - 1}, each once')


def _continuation_rule(tokenizer: Tokenizer) -> Any:
    """A piece -> whether it continues the word before it; by kind of model.

    Where spaces are marked, punctuation is a word of its own, as in ALBERT's code: masking a word masks no full stop.
    """
    if isinstance(tokenizer.model, models.WordPiece):
        return lambda piece: piece.startswith('##') and len(piece) > 2
    return lambda piece: not piece.startswith(WORD_STARTS) and any(c not in string.punctuation for c in piece)
