"""The largest batch that a device's memory holds: by a straight line through compiled sizes, itself compiled."""

from collections.abc import Callable
from typing import NamedTuple

MOST_COMPILED = 3
ENOUGH = 0.9  # of the memory: a batch that takes so much is near enough to the largest


class Line(NamedTuple):
    """Bytes of a device as a function of the rows of the global batch."""

    fixed: float
    per_row: float

    @classmethod
    def through(cls, points: dict[int, int]) -> 'Line':
        """The line through the two largest sizes, rows -> bytes."""
        (rows, needed), (before, needed_before) = sorted(points.items(), reverse=True)[:2]
        per_row = max((needed - needed_before) / (rows - before), 0.0)
        return cls(needed - per_row * rows, per_row)

    def rows(self, limit: int, step: int) -> int:
        """The most rows, in steps of `step`, that stay within `limit` bytes; 0 where rows cost nothing."""
        return max(int((limit - self.fixed) / self.per_row) // step, 0) * step if self.per_row else 0


class Largest(NamedTuple):
    """What a search has found."""

    rows: int  # 0 = no batch fits
    points: dict[int, int]  # rows that were compiled -> bytes of a device


def largest_batch(needed: Callable[[int], int], start: dict[int, int], *, step: int, limit: int) -> Largest:
    """The largest batch within `limit` bytes of those that were compiled.

    The first guess takes all but the bytes of 0 rows for what grows with them; each next one, the line through the
    last two.

    Args:
        needed: compiles a batch of so many rows and returns the bytes of a device.
        start: bytes of 0 rows, as far as they are known, and of the first batch, which is compiled.
        step: what the number of rows must be a multiple of.
        limit: bytes of a device.
    """
    points = dict(start)

    def best() -> int:
        return max(rows for rows, bytes_ in points.items() if bytes_ <= limit or not rows)

    while len(points) <= MOST_COMPILED and (not best() or points[best()] < ENOUGH * limit):
        refused = [rows for rows, bytes_ in points.items() if bytes_ > limit]
        guess = min([Line.through(points).rows(limit, step), *(rows - step for rows in refused)])
        if guess <= best():
            break
        points[guess] = needed(guess)
    return Largest(best(), {rows: bytes_ for rows, bytes_ in points.items() if rows})
