"""The mechanisms by name: a new one is a name here. Its room is loaded when a text or a call first names it."""

import functools
import importlib

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.room import Room

# Folders beside this file; in a text a pattern stands for softmax.
NAMES = (
    'softmax',
    'lsh',
    'favor',
    'linear',
    'sparsemax',
    'entmax',
    'hard',
    'local_p',
    'linformer',
    'nystrom',
    'induced',
    'sinkhorn',
    'routing',
    'synthesizer',
)


@functools.cache
def load_room(name: str) -> Room:
    """The room in the folder of this name; a folder with `make_room` makes it from softmax's."""
    folder = importlib.import_module(f'efficient_attention.attention.{name}')
    return folder.make_room(load_room('softmax')) if hasattr(folder, 'make_room') else folder.ROOM


def room_of(mechanism: Mechanism) -> Room:
    """The room of a mechanism; raises NotImplementedError where the registry has none."""
    if mechanism.name in NAMES and (room := load_room(mechanism.name)).kind is type(mechanism):
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
