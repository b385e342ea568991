"""Finds the most likely answer spans of a row from start and end logits."""

import numpy as np


def best_spans(
    logits_L2: np.ndarray, can_start_L: np.ndarray, text_L: np.ndarray, *, answer_length: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the `count` best answer spans of a row, best first, as (first token, last token, sum of logits).

    Of equally good spans, the leftmost comes first.

    The search covers every span, not only spans between the best starts and the best ends.

    Args:
        logits_L2: start and end logits.
        can_start_L: whether a span may start at the position.
        text_L: the number of the text (a context, a sentence) at the position, < 0 = none; a span stays within one
            text.
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
    chosen = top_k_indices(scores, count)
    chosen = chosen[scores[chosen] > -np.inf]
    return starts_S[chosen // answer_length], ends_SA.ravel()[chosen], scores[chosen]


def top_k_indices(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the positions of the `count` largest values, largest first; equal values stay in order."""
    if len(values) > count:
        least = np.partition(values, -count)[-count]
        places = np.flatnonzero(values >= least)
    else:
        places = np.arange(len(values))
    return places[np.argsort(-values[places], kind='stable')][:count]
