"""Overlapping windows over texts that are longer than a row, and the window in which a token has the most context.

Of tagged words, each is predicted in one row: none is lost, none predicted twice.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


def window_starts(length: int, room: int, stride: int) -> list[int]:
    """Where windows of `room` tokens start that cover `length` tokens and move on by `stride`, or by room if less."""
    step = min(stride, room)
    return [0, *range(step, max(length - room, 0) + step, step)]


def windows(count: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """(first, end) of the windows over `count` tokens: each holds `capacity` and starts `stride` after the last.

    The last ends with the tokens and may be shorter. A stride above the capacity is taken for the capacity, as BERT's
    code does, so that no token is left out.
    """
    return [(start, min(count, start + capacity)) for start in window_starts(count, capacity, stride)]


def maximum_context(count: int, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Bool [windows, count]: whether this is the (first) window in which the token has the most context.

    Context is the smaller of the numbers of tokens on the left and on the right, plus a hundredth of the window's
    length (Devlin et al.'s code for SQuAD).
    """
    tokens = np.arange(count)
    scores = np.full((len(spans), count), -1.0)
    for number, (start, stop) in enumerate(spans):
        inside = slice(start, stop)
        scores[number, inside] = np.minimum(tokens - start, stop - 1 - tokens)[inside] + 0.01 * (stop - start)
    return scores.argmax(axis=0) == np.arange(len(spans))[:, None]


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


def word_windows(tokens: WordTokens, room: int, stride: int) -> list[tuple[int, np.ndarray]]:
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
