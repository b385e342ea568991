"""Which slot of a decoding cache has which key, so that none is given away before the last query that reads its key?"""

import dataclasses
import functools
import heapq
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.patterns import Block, Causal, Window
from efficient_attention.attention.patterns.pattern import And, Or, Pattern, PerHead, Without, head_patterns

ROWS = 256  # queries whose pairs the host looks at together


class Reach(NamedTuple):
    """How far before and after a query its keys lie at most, in positions; infinite where nothing bounds it."""

    back: float
    ahead: float


def reach(pattern: Pattern) -> Reach:
    """How far the pattern lets queries of any head read, by its form."""
    match pattern:
        case Causal():
            return Reach(math.inf, 0)
        case Window():
            return Reach(pattern.radius * pattern.dilation, pattern.radius * pattern.dilation)
        case Block():
            return Reach((pattern.back + 1) * pattern.size - 1, (pattern.ahead + 1) * pattern.size - 1)
        case Without():
            return reach(pattern.left)
        case And() | Or() | PerHead():
            parts = [reach(part) for part in pattern.parts()]
            choose = min if isinstance(pattern, And) else max
            return Reach(choose(part.back for part in parts), choose(part.ahead for part in parts))
    return Reach(math.inf, math.inf)


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
    back = reach(pattern).back
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


def last_readers(patterns: list[Pattern], length: int) -> np.ndarray:
    """int [length]: the last position below `length` from which any of the patterns reads each key; -1 for none."""
    last = np.full(length, -1)
    for start in reversed(range(0, length, ROWS)):
        queries = np.arange(start, min(start + ROWS, length))
        keys = np.flatnonzero(last[: queries[-1] + 1] < 0)
        if not len(keys):
            continue
        reads = np.zeros((len(queries), len(keys)), bool)
        for pattern in patterns:
            reads |= pattern(queries[:, None], keys[None])
        is_read = reads.any(axis=0)
        last[keys[is_read]] = queries[-1] - reads[::-1].argmax(axis=0)[is_read]
    return last
