"""Decides how arrays are sharded over the devices of a mesh, from the dimension letters of their axes, such as 'BLD'.

Code that compiles a program for a mesh enters `using_mesh`. Inside this context, modules name the axes of their
results, as in `shard_activations(x, 'BLD')`. The tables below map each axis to an axis of the mesh. Without a mesh, or
on one device, no sharding is added and programs are unchanged. The mesh is part of the key of every `jax.jit` cache, as
the kind of device is (devices.py).
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from efficient_attention.attention.devices import using_platform

MeshAxes = str | tuple[str, ...] | None
Table = dict[str, MeshAxes]  # dimension letter -> axes of the mesh; array axes with other letters are not sharded

# The letter I is the joined width of all heads, H x K.
# If two letters of one array have the same mesh axis, only the first letter's axis is sharded.
ACTIVATIONS: Table = {'B': ('data', 'fsdp'), 'H': 'tensor', 'G': 'tensor', 'I': 'tensor', 'F': 'tensor', 'V': 'tensor'}
ACTIVATIONS |= {'L': 'sequence', 'M': 'sequence'}
PARAMETERS: Table = {'D': 'fsdp', 'E': 'fsdp', 'I': 'tensor', 'F': 'tensor', 'V': 'tensor'}
# GATHERED is the sharding of parameters after the gather over 'fsdp', as matrix products read them.
# LOOKED_UP is the sharding of embedding vectors that were looked up in a table whose width is sharded.
GATHERED: Table = {letter: axes for letter, axes in PARAMETERS.items() if axes != 'fsdp'}
LOOKED_UP: Table = ACTIVATIONS | {'B': 'data', 'E': 'fsdp'}

_mesh = jax.make_user_context(None)


@contextlib.contextmanager
def using_mesh(mesh: Mesh) -> Iterator[None]:
    """Traces programs for the devices of this mesh; usable as a context manager or a function decorator."""
    device = mesh.devices.flat[0]
    with using_platform(device.platform, mesh.size, device.device_kind), _mesh(mesh if mesh.size > 1 else None):
        yield


def device_mesh() -> Mesh | None:
    """Returns the device mesh that the current program is traced for; None on one device or outside `using_mesh`."""
    return _mesh.value


def has_fsdp_axis() -> bool:
    """Returns whether the mesh shards parameters over its axis 'fsdp',
    so that they must be gathered before matrix products.
    """
    mesh = device_mesh()
    return mesh is not None and mesh.shape.get('fsdp', 1) > 1


def is_axis_sharded(letter: str) -> bool:
    """Returns whether the mesh shards the axis of activations with this dimension letter over several devices."""
    return shard_count(letter) > 1


def shard_count(letter: str) -> int:
    """Returns over how many devices the mesh shards the axis of activations
    with this dimension letter; 1 without a mesh.
    """
    mesh = device_mesh()
    return 1 if mesh is None else math.prod(mesh.shape[name] for name in mesh_axes_of_letter(letter, mesh, ACTIVATIONS))


def mesh_axes_of_letter(letter: str, mesh: Mesh, table: Table) -> tuple[str, ...]:
    """Returns the mesh axes over which the array axis with this dimension letter, such as 'B',
    is sharded according to `table`.

    Axes that the mesh lacks are left out.
    """
    axes = table.get(letter)
    return tuple(name for name in ((axes,) if isinstance(axes, str) else axes or ()) if name in mesh.shape)


def partition(letters: str, shape: tuple[int, ...], mesh: Mesh, table: Table) -> PartitionSpec:
    """Returns the `PartitionSpec` of an array whose trailing axes have these dimension letters.

    Axes before those with letters are not sharded. Neither is an axis whose size the mesh does not divide, or an axis
    whose mesh axis already shards an earlier axis of the array.
    """
    spec: list[MeshAxes] = [None] * (len(shape) - len(letters))
    used: set[str] = set()
    for letter, size in zip(letters, shape[len(spec) :], strict=True):
        names = mesh_axes_of_letter(letter, mesh, table)
        is_split = names and not used & set(names) and size % math.prod(mesh.shape[name] for name in names) == 0
        used |= set(names) if is_split else set()
        spec.append((names[0] if len(names) == 1 else names) if is_split else None)
    return PartitionSpec(*spec)


def constrain_sharding(x: Shaped[Array, '...'], letters: str, table: Table) -> Shaped[Array, '...']:
    """Returns `x` sharded over the mesh by its dimension letters, which `table` maps to mesh axes. If there is no mesh,
    returns `x` unchanged.
    """
    mesh = device_mesh()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition(letters, x.shape, mesh, table)))


def shard_activations(x: Shaped[Array, '...'], letters: str) -> Shaped[Array, '...']:
    """Returns activations sharded over the mesh by rows, tokens and heads,
    according to their dimension letters; other axes are not sharded.

    Without this constraint the compiler may shard activations like the parameters they are multiplied with, and then
    gather them again.
    """
    return constrain_sharding(x, letters, ACTIVATIONS)


def has_divisible_heads(heads: int, key_heads: int) -> bool:
    """Returns whether the mesh divides both query heads and key heads over its devices; True without a mesh."""
    return heads % shard_count('H') == 0 and key_heads % shard_count('G') == 0


def map_over_shards(function: Callable[[Array], Array], x_BHLM: Shaped[Array, 'B H L M']) -> Shaped[Array, 'B H L *']:
    """Returns `function(x_BHLM)`, which each device computes for its own rows and heads;
    `function` must keep the axes B, H and L.

    If the compiler has no rule to shard an operation, it gathers the arrays of all devices. A loop that stops when no
    row needs another iteration would also synchronise all devices in every iteration.
    """
    mesh = device_mesh()
    if mesh is None:
        return function(x_BHLM)
    # `ACTIVATIONS` shards axes named L and M but not K, so 'BHKK' leaves the query and key axes of `x_BHLM` unsharded.
    spec = partition('BHKK', x_BHLM.shape, mesh, ACTIVATIONS)
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x_BHLM)


def gather_parameter(x: Shaped[Array, '...'], letters: str) -> Shaped[Array, '...']:
    """Returns a parameter gathered along the axes that the mesh axis 'fsdp' shards; its gradient is sharded again."""
    return x if device_mesh() is None else _gather_parameter(x, letters)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gather_parameter(x: Shaped[Array, '...'], letters: str) -> Shaped[Array, '...']:
    return constrain_sharding(constrain_sharding(x, letters, PARAMETERS), letters, GATHERED)


def _gather_parameter_forward(x: Shaped[Array, '...'], letters: str) -> tuple[Shaped[Array, '...'], None]:
    return _gather_parameter(x, letters), None


def _gather_parameter_backward(letters: str, _: None, gradient: Shaped[Array, '...']) -> tuple[Shaped[Array, '...']]:
    return (constrain_sharding(gradient, letters, PARAMETERS),)


_gather_parameter.defvjp(_gather_parameter_forward, _gather_parameter_backward)
