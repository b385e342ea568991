"""Overlapping windows over texts that are longer than a row, and the window in which a token has the most context."""

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
