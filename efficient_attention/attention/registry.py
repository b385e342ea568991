"""Every mechanism, by the name that texts give it; a new one is a line here."""

from efficient_attention.attention import favor, linear, lsh, softmax
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.room import Room

ROOMS: dict[str, Room] = {
    'softmax': softmax.ROOM,  # in a text a pattern stands for it
    'lsh': lsh.ROOM,
    'favor': favor.ROOM,
    'linear': linear.ROOM,
}


def room_of(mechanism: Mechanism) -> Room:
    """The room of a mechanism; raises NotImplementedError where the registry has none."""
    for room in ROOMS.values():
        if room.kind is type(mechanism):
            return room
    raise NotImplementedError(f'{type(mechanism).__name__} has no room in attention/registry.py')
