"""What the devices of a mesh gather from one another, read from the text of a compiled program."""

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from efficient_attention.attention.device_mesh import GATHERED, PARAMETERS, Table, partition
from efficient_attention.models.sharding import letters_of, path_name

INVOLUNTARY = 'Involuntary full rematerialization'  # the partitioner's warning that it gathers all to split it anew
OPERATION = re.compile(r'^\s*(?:ROOT )?%?\S+ = (?P<result>.*?) (?P<name>[a-z][a-z-]*?)(?:-start)?\(', re.MULTILINE)


class Result(NamedTuple):
    """An array that a collective operation gives on each device."""

    dtype: str
    shape: tuple[int, ...]


def results_of(text: str, name: str) -> list[list[Result]]:
    """The arrays that each collective of this name gives, such as 'all-gather'; several where it joins several."""
    found = [one['result'] for one in OPERATION.finditer(text) if one['name'] == name]
    arrays = [re.findall(r'(\w+)\[([\d,]*)\]', result) for result in found]
    return [[Result(dtype, tuple(map(int, shape.split(','))) if shape else ()) for dtype, shape in of] for of in arrays]


def parameter_shapes(params: Any, mesh: Mesh, stacked: int, table: Table) -> set[tuple[int, ...]]:
    """The shapes of parameters on one device that lie as the table says; of `stacked` layers one at a time."""
    shapes = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path_name(path)
        shape = leaf.shape[1:] if stacked and '/layers/' in name else leaf.shape
        axes = partition(letters_of(name) if len(shape) > 1 else '', shape, mesh, table)
        shapes.add(tuple(size // (mesh.shape[axis] if axis else 1) for size, axis in zip(shape, axes, strict=True)))
    return shapes


def forbidden_gathers(text: str, params: Any, mesh: Mesh, *, stacked: int) -> list[list[Result]]:
    """The program's all-gathers of anything but one layer's parameters, or a device's part of them.

    Integers and truth values (tokens, places, masks of rows) may be gathered, and of logits that are spread over
    devices the largest of each device.
    """
    allowed = parameter_shapes(params, mesh, stacked, GATHERED)
    most = sum(math.prod(shape) for shape in allowed)
    allowed |= parameter_shapes(params, mesh, stacked, PARAMETERS)

    def is_allowed(result: Result) -> bool:
        is_parameter = any(bare(result.shape) == bare(shape) for shape in allowed)
        is_largest = len(result.shape) == 3 and result.shape[-1] == mesh.shape['tensor']
        return is_parameter or is_largest or result.dtype[0] in 'sup'

    gathers = results_of(text, 'all-gather')
    return [of for of in gathers if not all(map(is_allowed, of)) or sum(math.prod(one.shape) for one in of) > most]


def bare(shape: tuple[int, ...]) -> list[int]:
    """The sizes of a shape that are more than 1, whatever their order."""
    return sorted(size for size in shape if size > 1)


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """Inside it no program comes from the folder of compiled ones, so that the compiler's warnings are seen."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update('jax_enable_compilation_cache', False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update('jax_enable_compilation_cache', before)
        compilation_cache.reset_cache()
