"""The slots of a decoding cache: each key has one until the last query that reads it, then another key takes it."""

import dataclasses
import functools
import heapq

import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.patterns import Pattern, head_patterns


@dataclasses.dataclass(frozen=True, eq=False)
class Slots:
    """Where each key is kept: in a ring of `count` slots, or where tables by position say."""

    count: int
    table: np.ndarray | None = None  # the slot of each position, `count` where nobody reads the key
    owners: np.ndarray | None = None  # the next position that takes the slot; far away where there is none

    @property
    def is_ring(self) -> bool:
        """Whether slots are taken in turn."""
        return self.table is None

    def slot(self, positions: Array) -> Array:
        """The slot of each position; `count` where it has none."""
        if self.table is None:
            return positions % self.count
        return jnp.asarray(self.table).at[positions].get(mode='fill', fill_value=self.count)

    def next_owner(self, positions: Array) -> Array:
        """The position that takes over the slot of each position."""
        if self.owners is None:
            return positions + self.count
        return jnp.asarray(self.owners).at[positions].get(mode='fill', fill_value=0)


@functools.lru_cache(maxsize=256)
def slots_of(pattern: Pattern, heads: int, length: int) -> Slots:
    """The fewest slots that hold every key for as long as any of `heads` heads may read it from a position < length."""
    back = pattern.reach.back
    if back < length:
        return Slots(int(back) + 1)
    last = last_readers(head_patterns(pattern, heads), length)
    table, owners = np.full(length, -1, np.int32), np.full(length, np.iinfo(np.int32).max, np.int32)
    taken: list[tuple[int, int]] = []  # (last reader, position) of the newest key of each slot
    for position in np.flatnonzero(last >= 0):
        before = heapq.heappop(taken)[1] if taken and taken[0][0] < position else -1
        table[position] = len(taken) if before < 0 else table[before]
        if before >= 0:
            owners[before] = position
        heapq.heappush(taken, (int(last[position]), int(position)))
    count = max(1, len(taken))
    return Slots(count, np.where(table < 0, count, table).astype(np.int32), owners)


def last_readers(patterns: list[Pattern], length: int, at_once: int = 256) -> np.ndarray:
    """int [length]: the last position below `length` from which any of the patterns reads each key; -1 for none.

    at_once: queries whose pairs with keys are in memory together.
    """
    last = np.full(length, -1)
    for start in reversed(range(0, length, at_once)):
        queries = np.arange(start, min(start + at_once, length))
        keys = np.flatnonzero(last[: queries[-1] + 1] < 0)
        if not len(keys):
            continue
        reads = np.zeros((len(queries), len(keys)), bool)
        for pattern in patterns:
            reads |= pattern(queries[:, None], keys[None])
        is_read = reads.any(axis=0)
        last[keys[is_read]] = queries[-1] - reads[::-1].argmax(axis=0)[is_read]
    return last
