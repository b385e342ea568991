"""Tokenises texts and keeps the character range of each token, so that an answer can be cut out of the original
text."""

import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding

from efficient_attention.data.examples.text_encoder import TextEncoder, encode_in_batches

COMBINING = ('Mn', 'Me')  # Unicode categories of characters that belong to the character before them, such as accents


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """A tokenised text: the token ids, int32 [tokens], and the character range of each token, int32 [tokens, 2].

    A range is the first character and the end, which is the character after the last.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


def encoded_texts(encoder: TextEncoder, texts: Sequence[str]) -> list[EncodedText]:
    """Returns each text with its tokens and their character ranges.

    A range has no white space at its ends, unless it is all white space.
    """
    return [
        _encoded_text(encoding, text) for encoding, text in zip(encode_in_batches(encoder, texts), texts, strict=True)
    ]


def _encoded_text(encoding: Encoding, text: str) -> EncodedText:
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    for number, (start, stop) in enumerate(encoding.offsets):
        # the character range of SentencePiece's '▁the' begins with a space
        if start < stop and (text[start].isspace() or text[stop - 1].isspace()):
            offsets[number] = _trim_whitespace(text, start, stop)
    return EncodedText(np.array(encoding.ids, np.int32), offsets)


def _trim_whitespace(text: str, start: int, stop: int) -> tuple[int, int]:
    inside = text[start:stop]
    if not inside.strip():
        return start, stop
    return start + len(inside) - len(inside.lstrip()), stop - len(inside) + len(inside.rstrip())


def tokens_in_character_span(offsets_P2: np.ndarray, start: int, stop: int) -> tuple[int, int] | None:
    """Returns the first and the last token that overlap the characters start:stop; None if no token does."""
    found = np.flatnonzero((offsets_P2[:, 0] < stop) & (offsets_P2[:, 1] > start))
    return (int(found[0]), int(found[-1])) if len(found) else None


def trimmed_substring(text: str, start: int, stop: int) -> tuple[int, int]:
    """Returns a character range without white space at its ends, extended by combining accents after it.

    A tokenizer that strips accents has no token for a combining accent, but readers see the accent as part of its
    letter.
    """
    while stop < len(text) and unicodedata.category(text[stop]) in COMBINING:
        stop += 1
    return _trim_whitespace(text, start, stop)
