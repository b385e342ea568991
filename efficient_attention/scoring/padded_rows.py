"""Groups rows of tokens by length and pads them, so that few programs are compiled and little padding is computed."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar('Item')
Key = TypeVar('Key', bound=Hashable)


def padded_length(length: int, limit: int | None = None) -> int:
    """Returns the padded length of a row: 16, 32, 48, 64, 96, ... (a power of two, or three quarters of one), at most
    `limit`.
    """
    power = 1 << max(length - 1, 15).bit_length()
    padded = power * 3 // 4 if power > 32 and length <= power * 3 // 4 else power
    return padded if limit is None else min(padded, limit)


def padded_count(count: int, limit: int) -> int:
    """Returns the padded number of predicted positions: 8, 32, 128, ..., at most `limit`.

    Their padding costs only the output layer's work, so the steps are larger than those of `padded_length`.
    """
    padded = 8
    while padded < count:
        padded *= 4
    return min(padded, limit)


def batches_by_key(items: Iterable[Item], key: Callable[[Item], Key], size: int) -> Iterator[tuple[Key, list[Item]]]:
    """Yields batches of at most `size` items with equal keys; keys and items keep their order."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    for one, members in groups.items():
        for start in range(0, len(members), size):
            yield one, members[start : start + size]


def split_into_batches(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Returns the items in order, in lists of at most `size`."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def pad_rows(rows: Sequence[Sequence[int]], length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows of ids as int32 [count, length] padded with zeros, and their lengths, int32 [count].

    If there are fewer than `count` rows, the first one is repeated.
    """
    tokens_BL, lengths_B = np.zeros((count, length), np.int32), np.zeros(count, np.int32)
    for number in range(count):
        row = rows[number if number < len(rows) else 0]
        tokens_BL[number, : len(row)], lengths_B[number] = row, len(row)
    return tokens_BL, lengths_B
