"""The registry of mechanisms by name; a mechanism's implementation is imported when it is first used."""

import functools
import importlib

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.room import Room

# Each name is a folder next to this file. In config texts, a bare pattern means softmax.
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
    """Returns the implementation in the folder of this name.

    A folder with `make_room` builds its implementation from softmax's.
    """
    folder = importlib.import_module(f'efficient_attention.attention.{name}')
    return folder.make_room(load_room('softmax')) if hasattr(folder, 'make_room') else folder.ROOM


def room_of(mechanism: Mechanism) -> Room:
    """Returns a mechanism's implementation; raises NotImplementedError if the registry has none."""
    if mechanism.name in NAMES and (room := load_room(mechanism.name)).kind is type(mechanism):
        return room
    raise NotImplementedError(f'{type(mechanism).__name__} has no implementation in attention/registry.py')


@functools.lru_cache(maxsize=256)
def multiply_adds(mechanism: Mechanism, length: int, heads: int, width: int) -> int:
    """Returns the multiply-adds of one row of `length` positions, over all `heads` of `width`, without segments.

    The count is for the fast form; for `Softmax` it is for the backend `blocked`. The dense backend, which 'auto' uses
    for short rows, computes every pair of a `Softmax` whatever its pattern. Softmax, sorting and masks are not counted.

    Raises:
        NotImplementedError: the mechanism has no implementation.
    """
    return room_of(mechanism).multiply_adds(mechanism, length, heads, width)
