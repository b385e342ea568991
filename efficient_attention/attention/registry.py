"""Finds the implementation of each mechanism by the mechanism's name, and imports it when it is first used.

A program may add mechanisms of its own. Their modules can also be named in an environment variable.
"""

import functools
import importlib
import os

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.errors import InputError, one_line

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
# The mechanisms that `add_mechanism` of parsing.py has added to this process, by name.
ADDED: dict[str, Implementation] = {}
# Environment variable with the modules that add a user's own mechanisms, separated by commas. No config field names
# them, because the config.json in a stranger's workdir must not choose the code that runs.
OWN_MODULES = 'EFFICIENT_ATTENTION_MODULES'


def is_added(name: str) -> bool:
    """Returns whether `add_mechanism` has added a mechanism of this name; if not, imports the user's modules first.

    Raises:
        InputError: a module of the environment variable EFFICIENT_ATTENTION_MODULES cannot be imported.
    """
    if name not in ADDED:
        for module in filter(None, os.environ.get(OWN_MODULES, '').replace(' ', '').split(',')):
            try:
                importlib.import_module(module)
            except (ImportError, SyntaxError) as error:
                is_missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition('.')[0]
                advice = '; add its folder to PYTHONPATH' if is_missing else ''
                raise InputError(
                    f'{OWN_MODULES} names {module}, which cannot be imported ({one_line(error)}){advice}'
                ) from None
    return name in ADDED


def load_implementation(name: str) -> Implementation:
    """Returns the `Implementation` with this name.

    It is one that `add_mechanism` has added, or else the one in the folder of the same name.
    """
    return ADDED[name] if name in ADDED else _load_folder(name)


@functools.cache
def _load_folder(name: str) -> Implementation:
    """Imports the folder of a mechanism, and returns the mechanism's `Implementation`.

    A folder with the function `make_implementation` derives its implementation from that of softmax.
    """
    folder = importlib.import_module(f'efficient_attention.attention.{name}')
    return (
        folder.make_implementation(_load_folder('softmax'))
        if hasattr(folder, 'make_implementation')
        else folder.IMPLEMENTATION
    )


def get_implementation(mechanism: Mechanism) -> Implementation:
    """Returns the `Implementation` of a mechanism; raises a NotImplementedError if its class is neither in the registry
    nor added.
    """
    is_known = mechanism.name in NAMES or mechanism.name in ADDED
    if is_known and (implementation := load_implementation(mechanism.name)).kind is type(mechanism):
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
