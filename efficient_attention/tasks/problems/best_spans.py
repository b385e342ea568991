"""Finds the most likely spans of a row, from the logits of where answers start and end."""

import numpy as np


def best_spans(
    logits_L2: np.ndarray, can_start_L: np.ndarray, text_L: np.ndarray, *, answer_length: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first, last, logits' sum) of the `count` best spans of a row, the best first; of equal ones the leftmost.

    Every span is looked at, not only those between the best starts and the best ends.

    Args:
        logits_L2: of a span's start and end.
        can_start_L: whether a span may start here.
        text_L: the number of the text (a context, a sentence) that a position is of, < 0 = none; no span leaves a text.
        answer_length: most tokens of a span.
        count: most spans.
    """
    starts_S = np.flatnonzero(can_start_L & (text_L >= 0))
    ends_SA = starts_S[:, None] + np.arange(answer_length)
    is_inside_SA = ends_SA < len(text_L)
    ends_SA = np.minimum(ends_SA, len(text_L) - 1)
    is_inside_SA &= text_L[ends_SA] == text_L[starts_S][:, None]
    sums_SA = logits_L2[starts_S, 0][:, None] + logits_L2[:, 1][ends_SA]
    scores = np.where(is_inside_SA, sums_SA, -np.inf).ravel()
    chosen = largest(scores, count)
    chosen = chosen[scores[chosen] > -np.inf]
    return starts_S[chosen // answer_length], ends_SA.ravel()[chosen], scores[chosen]


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest values, the largest first; of equal ones the first."""
    if len(values) > count:
        least = np.partition(values, -count)[-count]
        places = np.flatnonzero(values >= least)
    else:
        places = np.arange(len(values))
    return places[np.argsort(-values[places], kind='stable')][:count]
