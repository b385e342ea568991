"""Finds the collectives in a compiled program that the sharding design forbids."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from efficient_attention.attention.device_mesh import GATHERED, PARAMETERS, Table, partition
from efficient_attention.models.sharding import dimension_letters, path_name
from efficient_attention.planning.collectives import CollectiveInstruction, find_collectives
from efficient_attention.planning.hlo_program import ExecutedInstruction, Shape, parse_program

# the partitioner's warning that it gathers a whole array in order to split it anew
INVOLUNTARY = 'Involuntary full rematerialization'
# The mesh axes along which a collective may send activations: at most a device's share of one activation.
# A sum along the row axes (data, fsdp) is forbidden: it would mean a product with parameters that were not gathered.
MAY_SEND = {
    # sums partial results of a sub-layer; sums tokens that were picked out of their rows
    'all-reduce': ('tensor', 'sequence'),
    # looks up vectors in a split table; joins the memory with its segment
    'all-to-all': ('fsdp', 'tensor', 'sequence'),
    'collective-permute': ('tensor', 'sequence'),  # passes on keys and values; evens out sizes that do not divide
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes by which the arrays of a step are recognized in its compiled program.

    Args:
        share: the elements of the largest activation [rows, tokens, width] of one device.
        fixed: shapes on one device of arrays whose size is not simply proportional to the number or length of
            rows, such as sums over the features of keys, or tables of positions that are computed from parameters.
        predicted: [rows, predictions, width] of one device. On a sequence axis each device has its share of the
            predictions, and the gradients of these vectors are gathered.
        stacked: whether parameters of layers have a leading axis of layers.
    """

    share: int
    fixed: tuple[tuple[int, ...], ...] = ()
    predicted: tuple[int, ...] = ()
    stacked: bool = True


def sent(text: str, mesh: Mesh, *kinds: str) -> list[CollectiveInstruction]:
    """Returns the collectives of these kinds, by default of all kinds, in any loop and any branch of a compiled
    program.
    """
    computations = parse_program(text).computations
    every = [ExecutedInstruction(one, of, 1, name, name) for name, of in computations.items() for one in of.values()]
    return [one for one in find_collectives(every, mesh.shape) if not kinds or one.kind in kinds]


def forbidden(text: str, params: Any, mesh: Mesh, sizes: Sizes) -> list[CollectiveInstruction]:
    """Returns the collectives of a compiled program that the design forbids. These arrays may be sent:

    - Parameters of one layer, or a device's part of them, and their gradients.
    - Integers and booleans (tokens, positions, masks of rows), and single numbers.
    - Arrays of fixed sizes, gathered or summed; if logits are spread over devices, the largest logit of each device.
    - Activations as `MAY_SEND` says. Only one kind is gathered: the gradients of predicted tokens.
    """
    one_layer = parameter_shapes(params, mesh, sizes.stacked, GATHERED)
    most = sum(math.prod(shape) for shape in one_layer)
    known = {bare(shape) for shape in one_layer | parameter_shapes(params, mesh, sizes.stacked, PARAMETERS)}

    def is_allowed(one: CollectiveInstruction, shape: Shape) -> bool:
        count = mesh.shape.get('sequence', 1)
        fixed = {bare(lead + of) for of in sizes.fixed for lead in ((), (count,) if one.kind == 'all-gather' else ())}
        if shape.dtype[0] in 'sup' or math.prod(shape.sizes) == 1 or bare(shape.sizes) in known | fixed:
            return True
        if one.kind == 'all-gather' and one.axes == 'sequence':
            return shape.sizes == sizes.predicted
        if one.kind == 'all-gather':
            return one.axes == 'tensor' and len(shape.sizes) == 3 and shape.sizes[-1] == mesh.shape['tensor']
        return one.axes in MAY_SEND.get(one.kind, ()) and math.prod(shape.sizes) <= sizes.share

    def is_one_layer(one: CollectiveInstruction) -> bool:
        return one.kind != 'all-gather' or sum(math.prod(shape.sizes) for shape in one.results) <= most

    every = sent(text, mesh)
    return [
        one for one in every if not is_one_layer(one) or not all(is_allowed(one, shape) for shape in arrays_of(one))
    ]


def named(one: CollectiveInstruction) -> tuple[str, str, list[tuple[int, ...]]]:
    """Returns the kind, the axes and the result shapes of a collective."""
    return one.kind, one.axes, [shape.sizes for shape in one.results]


def arrays_of(one: CollectiveInstruction) -> tuple[Shape, ...]:
    """Returns the arrays that a device receives; the pieces of an all-to-all count as one array."""
    first = one.results[0]
    if one.kind == 'all-to-all' and len(one.results) == one.members:
        return (dataclasses.replace(first, sizes=(one.members, *first.sizes)),)
    return one.results


def parameter_shapes(params: Any, mesh: Mesh, stacked: bool, table: Table) -> set[tuple[int, ...]]:
    """Returns the parameters' shapes on one device where `table` decides their layout; if `stacked`, one layer at a
    time.
    """
    shapes = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path_name(path)
        shape = leaf.shape[1:] if stacked and '/layers/' in name else leaf.shape
        for letters in {
            dimension_letters(name),
            '' if len(shape) == 1 else dimension_letters(name),
        }:  # a device may have a whole vector of parameters
            axes = partition(letters, shape, mesh, table)
            shapes.add(tuple(size // (mesh.shape[axis] if axis else 1) for size, axis in zip(shape, axes, strict=True)))
    return shapes


def bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes of a shape that are larger than 1, in ascending order."""
    return tuple(sorted(size for size in shape if size > 1))


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """Turns off the cache of compiled programs inside the `with` block, so that the compiler's warnings are seen."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update('jax_enable_compilation_cache', False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update('jax_enable_compilation_cache', before)
        compilation_cache.reset_cache()
