"""Compares the names, shapes and dtypes of a checkpoint with those of a state before a byte is read.

Orbax refuses a wrong shape or name with a page of text and casts a wrong dtype without a word, so this comes first.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from efficient_attention.errors import InputError
from efficient_attention.models.sharding import path_name

NAMED_DIFFERENCES = 3  # in the message; the rest is counted


class Leaf(NamedTuple):
    """Shape and dtype of one array of a state."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f'{self.dtype} {list(self.shape)}'


def leaves_of(tree: Any) -> dict[str, Leaf]:
    """{'params/layers/up/kernel': Leaf} for a pytree of arrays, abstract arrays or their metadata."""
    return {
        path_name(path): Leaf(tuple(leaf.shape), np.dtype(leaf.dtype).name)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def check_fit(saved: Mapping[str, Leaf], wanted: Mapping[str, Leaf], *, where: str) -> None:
    """Checks that a checkpoint holds exactly the wanted arrays.

    Raises:
        InputError: one line; names the first differing arrays, parameters before optimizer state, and counts the rest.
    """
    names = sorted({*saved, *wanted}, key=lambda name: (not name.startswith('params/'), name))
    different = [name for name in names if saved.get(name) != wanted.get(name)]
    if different:
        described = [_describe(name, saved.get(name), wanted.get(name)) for name in different[:NAMED_DIFFERENCES]]
        rest = len(different) - len(described)
        more = f'; and {rest} more' if rest else ''
        raise InputError(f'{where} is from another model: {"; ".join(described)}{more}')


def _describe(name: str, saved: Leaf | None, wanted: Leaf | None) -> str:
    if saved is None:
        return f'{name} is missing in the checkpoint ({wanted} in this model)'
    if wanted is None:
        return f'{name} is only in the checkpoint ({saved})'
    return f'{name} is {saved} in the checkpoint and {wanted} in this model'
