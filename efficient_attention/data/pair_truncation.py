"""Shortens two texts that are too long for one row together."""


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts fit in `room`, taken one by one off the longer, of the second if both are equal.

    The rule of BERT's code (`_truncate_seq_pair`), without its loop.
    """
    kept = min(second, max(room // 2, room - first))
    return min(first, room - kept), kept
