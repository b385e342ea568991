"""Finds the implementation of each mechanism by the mechanism's name, and imports it when it is first used."""

import functools
import importlib

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.mechanism import Mechanism

# Each name is a folder next to this file; a config text that is only a pattern means softmax.
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
def load_implementation(name: str) -> Implementation:
    """Returns the `Implementation` of the mechanism with this name, from the folder of the same name.

    A folder with `make_implementation` builds its implementation from softmax's.
    """
    folder = importlib.import_module(f'efficient_attention.attention.{name}')
    return (
        folder.make_implementation(load_implementation('softmax'))
        if hasattr(folder, 'make_implementation')
        else folder.IMPLEMENTATION
    )


def get_implementation(mechanism: Mechanism) -> Implementation:
    """Returns the `Implementation` of a mechanism; raises a NotImplementedError if the registry does not list the
    mechanism's class.
    """
    if mechanism.name in NAMES and (implementation := load_implementation(mechanism.name)).kind is type(mechanism):
        return implementation
    raise NotImplementedError(f'{type(mechanism).__name__} has no implementation in attention/registry.py')


@functools.lru_cache(maxsize=256)
def multiply_adds(mechanism: Mechanism, length: int, heads: int, width: int) -> int:
    """Returns how many multiply-adds a mechanism needs for one row of `length` positions, over all `heads` of `width`.

    Rows have no segments. The count is for the fast form; for `Softmax` it is for the backend `blocked`. The dense
    backend, which 'auto' uses for short rows, computes every pair of a `Softmax` whatever its pattern. Softmax, sorting
    and masks are not counted.

    Raises:
        NotImplementedError: the mechanism has no implementation.
    """
    return get_implementation(mechanism).multiply_adds(mechanism, length, heads, width)
