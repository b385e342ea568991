"""Every mechanism's room, by the mechanism's name; a new one is a line here."""

import functools

from efficient_attention.attention import (
    entmax,
    favor,
    hard,
    induced,
    linear,
    linformer,
    local_p,
    lsh,
    nystrom,
    routing,
    sinkhorn,
    softmax,
    sparsemax,
    synthesizer,
)
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.room import Room

_ROOMS = (
    softmax.ROOM,  # in a text a pattern stands for it
    lsh.ROOM,
    favor.ROOM,
    linear.ROOM,
    sparsemax.ROOM,
    entmax.ROOM,
    hard.ROOM,
    local_p.ROOM,
    linformer.ROOM,
    nystrom.ROOM,
    induced.ROOM,
    sinkhorn.ROOM,
    routing.ROOM,
    synthesizer.make_room(softmax.ROOM),
)
ROOMS: dict[str, Room] = {room.kind.name: room for room in _ROOMS}


def room_of(mechanism: Mechanism) -> Room:
    """The room of a mechanism; raises NotImplementedError where the registry has none."""
    for room in ROOMS.values():
        if room.kind is type(mechanism):
            return room
    raise NotImplementedError(f'{type(mechanism).__name__} has no room in attention/registry.py')


@functools.lru_cache(maxsize=256)
def multiply_adds(mechanism: Mechanism, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row of `length` positions, over all `heads` of `width`, without segments.

    Counted is what the fast form computes, of `Softmax` the backend `blocked`; the dense backend, which 'auto' takes
    for short rows, computes every pair of a `Softmax` whatever its pattern. Softmax, sorting and masks are left out.

    Raises:
        NotImplementedError: a mechanism that has no room.
    """
    return room_of(mechanism).multiply_adds(mechanism, length, heads, width)
