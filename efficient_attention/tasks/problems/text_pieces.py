"""Pieces of texts that are encoded once and read in windows: a question with each window of its context."""

import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding

from efficient_attention.data.examples.row_template import TEXTS_AT_ONCE
from efficient_attention.data.examples.text_encoder import TextEncoder

COMBINING = ('Mn', 'Me')  # categories of characters that belong to the one before, such as accents


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A text's ids, int32 [P], and the characters that each stands for, int32 [P, 2], first and end."""

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


def pieces_of(encoder: TextEncoder, texts: Sequence[str]) -> list[Pieces]:
    """Each text's pieces, none of which begins or ends in white space unless it is nothing else."""
    groups = [list(texts[start : start + TEXTS_AT_ONCE]) for start in range(0, len(texts), TEXTS_AT_ONCE)]
    return [
        _pieces(encoding, text) for group in groups for encoding, text in zip(encoder.encode(group), group, strict=True)
    ]


def _pieces(encoding: Encoding, text: str) -> Pieces:
    offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    for number, (start, stop) in enumerate(encoding.offsets):
        if start < stop and (text[start].isspace() or text[stop - 1].isspace()):  # SentencePiece's '▁the' holds one
            offsets[number] = _trimmed(text, start, stop)
    return Pieces(np.array(encoding.ids, np.int32), offsets)


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    inside = text[start:stop]
    if not inside.strip():
        return start, stop
    return start + len(inside) - len(inside.lstrip()), stop - len(inside) + len(inside.rstrip())


def windows(count: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """(first, end) of the windows over `count` pieces: each holds `capacity` and starts `stride` after the last.

    The last ends with the pieces and may be shorter. A stride above the capacity is taken for the capacity, as BERT's
    code does, so that no piece is left out.
    """
    found, start = [(0, min(count, capacity))], 0
    while found[-1][1] < count:
        start += min(stride, capacity)
        found.append((start, min(count, start + capacity)))
    return found


def cut_notes(questions: Sequence[Pieces], places: Sequence[str], limit: int) -> dict[str, str]:
    """A line on the questions above `limit` pieces, which are cut, under itself as a key; {} where there are none."""
    cut = [place for question, place in zip(questions, places, strict=True) if len(question) > limit]
    if not cut:
        return {}
    line = f'{len(cut)} of {len(places)} questions have more than examples.question_length {limit} tokens and were cut'
    return {f'{line}, the first: {cut[0]}': f'{line}, the first: {cut[0]}'}


def maximum_context(count: int, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Bool [windows, count]: whether this is the (first) window in which the piece has the most context.

    Context is the smaller of the numbers of pieces on the left and on the right, plus a hundredth of the window's
    length (Devlin et al.'s code for SQuAD).
    """
    pieces = np.arange(count)
    scores = np.full((len(spans), count), -1.0)
    for number, (start, stop) in enumerate(spans):
        inside = slice(start, stop)
        scores[number, inside] = np.minimum(pieces - start, stop - 1 - pieces)[inside] + 0.01 * (stop - start)
    return scores.argmax(axis=0) == np.arange(len(spans))[:, None]


def pieces_over(offsets_P2: np.ndarray, start: int, stop: int) -> tuple[int, int] | None:
    """The first and the last piece that hold one of the characters start:stop; None where none does."""
    found = np.flatnonzero((offsets_P2[:, 0] < stop) & (offsets_P2[:, 1] > start))
    return (int(found[0]), int(found[-1])) if len(found) else None


def characters_of(text: str, start: int, stop: int) -> tuple[int, int]:
    """Characters start:stop without white space around them, and with the accents that belong to the last one.

    A tokenizer that strips accents has no piece for a combining one, and a reader sees it as part of its letter.
    """
    while stop < len(text) and unicodedata.category(text[stop]) in COMBINING:
        stop += 1
    return _trimmed(text, start, stop)
