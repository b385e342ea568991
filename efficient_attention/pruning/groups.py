"""Finds the pruning groups of a model: which weights, blocks, heads or feed-forward units are kept or removed together.

Pruning keeps or removes whole entries of a group, such as the heads of an attention layer. A group names the kernels
that contain the weights of its entries. An entry is kept or removed in all these kernels. The scores and the mask of a
group are arrays with one number per entry. If layers have separate parameters, their first axis is the layer axis, as
in the kernels.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.config.prune import NONE, PruneConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import path_name

# Paths of kernels that can be pruned: an encoder's kernels, except in the sentence level of a hierarchical encoder.
KERNEL = re.compile(r'(?!sentences/)((?:.*/)?layers/(?:.*/)?(attention|feed_forward))/(\w+)/kernel$')
ATTENTION, FEED_FORWARD = 'attention', 'feed_forward'
PRUNED = {ATTENTION: ('query', 'key', 'value', 'out'), FEED_FORWARD: ('gate', 'up', 'down')}
INWARD = ('out', 'down')  # kernels in which a head or unit owns rows; in others it owns columns


@dataclasses.dataclass(frozen=True)
class PrunedKernel:
    """A kernel that a pruning group masks: its path, its shape, and which weights belong to each entry of the group.

    An entry is what pruning keeps or removes as a whole, such as a head.
    """

    path: str
    shape: tuple[int, ...]  # kernel shape, [I, O] or [N, I, O]
    way: str  # the weights of one entry: a single 'weight', a square 'block', or some 'rows' or 'columns' of the kernel
    size: int = 1  # side of the block, or number of rows or columns, that belongs to one entry

    def broadcast_entries(self, entries: Array) -> Array:
        """Returns the values of a group's entries in a shape that broadcasts to the kernel's shape [..., I, O]."""
        if self.way == 'weight':
            return entries
        if self.way == 'block':
            return jnp.repeat(jnp.repeat(entries, self.size, axis=-2), self.size, axis=-1)
        wide = jnp.repeat(entries, self.size, axis=-1)
        return wide[..., :, None] if self.way == 'rows' else wide[..., None, :]

    def sums_per_entry(self, weights: Array) -> Array:
        """Returns, for each unit that is pruned as a whole, such as a block or a row, the sum of its weights."""
        if self.way == 'weight':
            return weights
        if self.way == 'block':
            *rest, rows, columns = self.shape
            size = self.size
            return weights.reshape(*rest, rows // size, size, columns // size, size).sum(axis=(-3, -1))
        summed = weights.sum(axis=-1 if self.way == 'rows' else -2)
        return summed.reshape(*summed.shape[:-1], -1, self.size).sum(axis=-1)


@dataclasses.dataclass(frozen=True)
class PruningGroup:
    """A pruning group, such as all heads of an attention: its scores' path and shape, and the kernels that its entries
    mask.

    Args:
        path: path of the scores, such as 'encoder/stack/layers/attention/heads', or the path of a single kernel.
        kind: 'attention' or 'feed_forward'.
        shape: shape of the entries; [N, ...] if layers have separate parameters.
        members: the kernels.
        is_stacked: whether the first axis is the layer axis.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    members: tuple[PrunedKernel, ...]
    is_stacked: bool

    @property
    def entries(self) -> int:
        """The number of entries, such as heads, that a pruning group has per layer."""
        return math.prod(self.shape[1:] if self.is_stacked else self.shape)

    @property
    def weights_per_entry(self) -> int:
        """The number of weights that belong to one entry of the pruning group, such as a head."""
        return sum(math.prod(member.shape) for member in self.members) // math.prod(self.shape)


def find_groups(params: Mapping, config: PruneConfig, head_width: int) -> tuple[PruningGroup, ...]:
    """Returns the pruning groups of a model: entries such as heads, and the kernels that these entries mask.

    Args:
        params: nested dict of arrays, or of their shapes.
        config: says whether pruning removes single weights, blocks, heads or units.
        head_width: width of each head.

    Raises:
        InputError: the model has no kernel that may be pruned, or the block size does not divide the named kernel.
    """
    found: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        match = KERNEL.match(path_name(path))
        where, kind, name = match.groups() if match else ('', '', '')
        if name in PRUNED.get(kind, ()):
            found.setdefault((where, kind), {})[name] = tuple(leaf.shape)
    groups: list[PruningGroup] = []
    for (where, kind), kernels in found.items():
        way = getattr(config, kind)
        if way in ('weight', 'block'):
            size = config.block if way == 'block' else 1
            groups += [matrix_group(f'{where}/{name}/kernel', kind, shape, size) for name, shape in kernels.items()]
        elif way != NONE:
            groups.append(heads_or_units_group(where, kind, kernels, head_width))
    if not groups:
        ways = f'prune.attention {config.attention!r} and prune.feed_forward {config.feed_forward!r}'
        raise InputError(f'prune.method is {config.method!r}, and no layer of the model has kernels for {ways}')
    return tuple(groups)


def matrix_group(path: str, kind: str, shape: tuple[int, ...], block: int) -> PruningGroup:
    """Returns a pruning group for a single kernel. The group's entries are square blocks with side `block`, or single
    weights if `block` is 1.

    Raises:
        InputError: the block size does not divide the kernel.
    """
    *rest, rows, columns = shape
    if rows % block or columns % block:
        raise InputError(f'prune.block is {block}, which does not divide {path} of {rows} x {columns}')
    member = PrunedKernel(path, shape, 'weight' if block == 1 else 'block', block)
    return PruningGroup(path, kind, (*rest, rows // block, columns // block), (member,), bool(rest))


def heads_or_units_group(
    where: str, kind: str, kernels: Mapping[str, tuple[int, ...]], head_width: int
) -> PruningGroup:
    """Returns the pruning group whose entries are the heads or units of a sub-layer; it masks all kernels of the
    sub-layer.
    """
    inward = next(kernels[name] for name in INWARD if name in kernels)
    *rest, inner, _ = inward
    entries = inner // head_width if kind == ATTENTION else inner
    members = tuple(
        PrunedKernel(f'{where}/{name}/kernel', shape, 'rows' if name in INWARD else 'columns', inner // entries)
        for name, shape in kernels.items()
    )
    name = 'heads' if kind == ATTENTION else 'units'
    return PruningGroup(f'{where}/{name}', kind, (*rest, entries), members, bool(rest))
