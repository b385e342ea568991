"""Costs of mechanisms: multiply-adds of its matrix products in self-attention, forward."""

import functools

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.registry import room_of


@functools.lru_cache(maxsize=256)
def multiply_adds(mechanism: Mechanism, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row of `length` positions, over all `heads` of `width`, without segments.

    Counted is what the fast form computes, of `Softmax` the backend `blocked`; the dense backend, which 'auto' takes
    for short rows, computes every pair of a `Softmax` whatever its pattern. Softmax, sorting and masks are left out.

    Raises:
        NotImplementedError: a mechanism that has no room.
    """
    return room_of(mechanism).multiply_adds(mechanism, length, heads, width)
