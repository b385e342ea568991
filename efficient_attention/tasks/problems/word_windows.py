"""Cuts a sentence into rows so that each word is predicted in one row: none is lost, none predicted twice."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class WordTokens:
    """A sentence as tokens.

    Attributes:
        ids: int32 [l].
        words: int32 [l], the word whose first token stands there; -1 = none.
        count: how many words there are; some may have no token, such as a lone control character.
    """

    ids: np.ndarray
    words: np.ndarray
    count: int

    @property
    def lost(self) -> int:
        """How many words have no token."""
        return self.count - int(np.sum(self.words >= 0))


def word_tokens(ids: np.ndarray, offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> WordTokens:
    """The tokens of a text whose words stand at `spans`, given their `offsets` in it, both in characters.

    A token belongs to the word that its last character is in: a byte-level tokenizer's tokens may begin with the space.
    """
    words = np.full(len(ids), -1, np.int32)
    starts = np.array([start for start, _ in spans], np.int64)
    seen = -1
    for place, (start, end) in enumerate(offsets):
        word = int(np.searchsorted(starts, end - 1, side='right')) - 1
        if end > start and seen < word and end <= spans[word][1]:
            words[place] = seen = word
    return WordTokens(ids, words, len(spans))


def windows(tokens: WordTokens, room: int, stride: int) -> list[tuple[int, np.ndarray]]:
    """(first token, words [l] as in `WordTokens`) of each row of at most `room` tokens.

    Rows move on by `stride` tokens, or by `room` if that is less, or by somewhat less still to begin with a word. A
    word is left to the row that shows the most tokens on the narrower side of it.
    """
    starts = _starts(tokens.words, room, stride)
    ends = [min(start + room, len(tokens.ids)) for start in starts]
    rows = [np.full(end - start, -1, np.int32) for start, end in zip(starts, ends, strict=True)]
    for place in np.flatnonzero(tokens.words >= 0):
        context = [min(place - start, end - 1 - place) for start, end in zip(starts, ends, strict=True)]
        best = int(np.argmax(context))
        rows[best][place - starts[best]] = tokens.words[place]
    return list(zip(starts, rows, strict=True))


def _starts(words: np.ndarray, room: int, stride: int) -> list[int]:
    starts, step = [0], min(stride, room)
    while starts[-1] + room < len(words):
        target = starts[-1] + step
        firsts = np.flatnonzero(words[starts[-1] + 1 : target + 1] >= 0)
        starts.append(starts[-1] + 1 + int(firsts[-1]) if len(firsts) else target)
    return starts
