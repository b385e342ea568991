"""Assigns the keys of a decoding cache to slots: a key keeps its slot until the last query
that reads it, then the slot is reused.
"""

import dataclasses
import functools
import heapq

import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.patterns import Pattern, head_patterns


@dataclasses.dataclass(frozen=True, eq=False)
class CacheSlots:
    """Says which cache slot each key takes: slots in turn (a ring buffer), or a slot from a table over key positions.

    Args:
        count: number of slots.
        slots_M: the slot of each key, `count` if no query reads it; None for a ring.
        next_keys_M: the position of the next key that takes the same slot, the largest int32 if there is none.
    """

    count: int
    slots_M: np.ndarray | None = None
    next_keys_M: np.ndarray | None = None

    @property
    def is_ring_buffer(self) -> bool:
        """Whether keys take the cache slots in turn, as in a ring buffer."""
        return self.slots_M is None

    def slot_of_position(self, positions: Array) -> Array:
        """Returns the cache slot of the key at each position; `count` if no query reads the key and it has no slot."""
        if self.slots_M is None:
            return positions % self.count
        return jnp.asarray(self.slots_M).at[positions].get(mode='fill', fill_value=self.count)

    def next_position_in_slot(self, positions: Array) -> Array:
        """Returns, for the key at each position, the position of the next key that takes the same cache slot."""
        if self.next_keys_M is None:
            return positions + self.count
        return jnp.asarray(self.next_keys_M).at[positions].get(mode='fill', fill_value=0)


@functools.lru_cache(maxsize=256)
def assign_cache_slots(pattern: Pattern, heads: int, length: int) -> CacheSlots:
    """Assigns the keys of `length` positions to the fewest cache slots in which each key stays while any head may still
    read it.
    """
    back = pattern.reach.back
    if back < length:
        return CacheSlots(int(back) + 1)
    last_M = last_reading_queries(head_patterns(pattern, heads), length)
    slots_M, next_keys_M = np.full(length, -1, np.int32), np.full(length, np.iinfo(np.int32).max, np.int32)
    # One entry per slot, for its newest key: the last query that reads the key, and the key's position.
    taken: list[tuple[int, int]] = []
    for position in np.flatnonzero(last_M >= 0):
        before = heapq.heappop(taken)[1] if taken and taken[0][0] < position else -1
        slots_M[position] = len(taken) if before < 0 else slots_M[before]
        if before >= 0:
            next_keys_M[before] = position
        heapq.heappush(taken, (int(last_M[position]), int(position)))
    count = max(1, len(taken))
    return CacheSlots(count, np.where(slots_M < 0, count, slots_M).astype(np.int32), next_keys_M)


def last_reading_queries(patterns: list[Pattern], length: int, at_once: int = 256) -> np.ndarray:
    """Returns, for each of `length` keys, the last position below `length` whose query reads it under any
    of the patterns; -1 for no query.

    at_once: queries whose pairs with keys are in memory together.
    """
    last_M = np.full(length, -1)
    for start in reversed(range(0, length, at_once)):
        queries = np.arange(start, min(start + at_once, length))
        keys = np.flatnonzero(last_M[: queries[-1] + 1] < 0)
        if not len(keys):
            continue
        reads = np.zeros((len(queries), len(keys)), bool)
        for pattern in patterns:
            reads |= pattern(queries[:, None], keys[None])
        is_read = reads.any(axis=0)
        last_M[keys[is_read]] = queries[-1] - reads[::-1].argmax(axis=0)[is_read]
    return last_M
