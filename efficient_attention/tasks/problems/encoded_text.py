"""Texts as tokens that know which characters they stand for, so that an answer is cut out of the text itself."""

import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding

from efficient_attention.data.examples.text_encoder import TextEncoder, encodings

COMBINING = ('Mn', 'Me')  # categories of characters that belong to the one before, such as accents


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """The ids of a text's tokens, int32 [P], and the characters that each stands for, int32 [P, 2], first and end."""

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


def encoded_texts(encoder: TextEncoder, texts: Sequence[str]) -> list[EncodedText]:
    """Each text's tokens, none of which stands for white space at its begin or end unless for nothing else."""
    return [_encoded(encoding, text) for encoding, text in zip(encodings(encoder, texts), texts, strict=True)]


def _encoded(encoding: Encoding, text: str) -> EncodedText:
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    for number, (start, stop) in enumerate(encoding.offsets):
        if start < stop and (text[start].isspace() or text[stop - 1].isspace()):  # SentencePiece's '▁the' holds one
            offsets[number] = _trimmed(text, start, stop)
    return EncodedText(np.array(encoding.ids, np.int32), offsets)


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    inside = text[start:stop]
    if not inside.strip():
        return start, stop
    return start + len(inside) - len(inside.lstrip()), stop - len(inside) + len(inside.rstrip())


def tokens_over(offsets_P2: np.ndarray, start: int, stop: int) -> tuple[int, int] | None:
    """The first and the last token that hold one of the characters start:stop; None where none does."""
    found = np.flatnonzero((offsets_P2[:, 0] < stop) & (offsets_P2[:, 1] > start))
    return (int(found[0]), int(found[-1])) if len(found) else None


def characters_of(text: str, start: int, stop: int) -> tuple[int, int]:
    """Characters start:stop without white space around them, and with the accents that belong to the last one.

    A tokenizer that strips accents has no token for a combining one, and a reader sees it as part of its letter.
    """
    while stop < len(text) and unicodedata.category(text[stop]) in COMBINING:
        stop += 1
    return _trimmed(text, start, stop)
