"""Splits texts that are longer than a row into overlapping windows.

For each token, this file also finds the window in which the token has the most context. Each word of a tagged sentence
is predicted in exactly one window.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


def window_starts(length: int, room: int, stride: int) -> list[int]:
    """Returns the first tokens of overlapping windows of `room` tokens that cover a text of `length` tokens.

    The windows are `min(stride, room)` tokens apart.
    """
    step = min(stride, room)
    return [0, *range(step, max(length - room, 0) + step, step)]


def window_spans(count: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """Returns (first token, end) of the overlapping windows that cover a text of `count` tokens.

    Each window has `capacity` tokens, and the windows are `stride` tokens apart.

    The last window ends with the last token and may be shorter. A stride above the capacity is reduced to the capacity,
    as in BERT's code, so that no token is left out.
    """
    return [(start, min(count, start + capacity)) for start in window_starts(count, capacity, stride)]


def max_context_mask(count: int, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Marks, for each token, the first of the windows in which the token has the most context: bool [windows, tokens].

    Context is the number of tokens to the left or to the right, whichever is smaller, plus 0.01 times the window's
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
    """A tokenised sentence, with the word that begins at each token.

    Attributes:
        ids: int32 [l].
        words: int32 [l], the word whose first token is at the position; -1 = none.
        count: number of words; some may have no token, such as a single control character.
    """

    ids: np.ndarray
    words: np.ndarray
    count: int

    @property
    def lost_word_count(self) -> int:
        """Returns the number of words of which the tokenizer makes no token."""
        return self.count - int(np.sum(self.words >= 0))


def word_tokens(ids: np.ndarray, offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> WordTokens:
    """Returns the tokens of a sentence together with the word that begins at each token.

    `spans` are the character ranges of the words, and `offsets` the character ranges of the tokens.

    A token belongs to the word of its last character, because tokens of a byte-level tokenizer may begin with the
    space.
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
    """Returns, for each window over a sentence that is longer than a row, its first token and the words that it
    predicts.

    A window has at most `room` tokens. Its words are an array [l] as in `WordTokens`.

    Rows start `min(stride, room)` tokens apart, or slightly less, to begin at the start of a word. Each word is
    predicted in one row: compare the smaller of the word's left and right contexts, and take the row with the largest.
    """
    starts = _word_window_starts(tokens.words, room, stride)
    ends = [min(start + room, len(tokens.ids)) for start in starts]
    rows = [np.full(end - start, -1, np.int32) for start, end in zip(starts, ends, strict=True)]
    for place in np.flatnonzero(tokens.words >= 0):
        context = [min(place - start, end - 1 - place) for start, end in zip(starts, ends, strict=True)]
        best = int(np.argmax(context))
        rows[best][place - starts[best]] = tokens.words[place]
    return list(zip(starts, rows, strict=True))


def _word_window_starts(words: np.ndarray, room: int, stride: int) -> list[int]:
    starts, step = [0], min(stride, room)
    while starts[-1] + room < len(words):
        target = starts[-1] + step
        firsts = np.flatnonzero(words[starts[-1] + 1 : target + 1] >= 0)
        starts.append(starts[-1] + 1 + int(firsts[-1]) if len(firsts) else target)
    return starts
