"""Every mechanism's room, by the mechanism's name; a new one is a line here."""

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
