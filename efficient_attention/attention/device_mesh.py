"""How arrays lie over the devices of a mesh, said by the letters of their axes.

Whoever compiles a program for a mesh says so with `using_mesh`. Inside it modules name the axes of what they compute,
`spread(x, 'BLD')`, and the tables below say over which axis of the mesh each of them is spread. Without a mesh, and on
one device, nothing is said and programs are what they are without it. The mesh is part of the key of every cache of
`jax.jit`, as the kind of device is (devices.py).
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from efficient_attention.attention.devices import compiled_for

MeshAxes = str | tuple[str, ...] | None
Table = dict[str, MeshAxes]  # axis letter -> axes of the mesh; letters that are missing stay whole

# I is the joined width of all heads, H x K. An axis of the mesh serves the first letter of an array that names it.
ACTIVATIONS: Table = {'B': ('data', 'fsdp'), 'H': 'tensor', 'G': 'tensor', 'I': 'tensor', 'F': 'tensor', 'V': 'tensor'}
ACTIVATIONS |= {'L': 'sequence', 'M': 'sequence'}
PARAMETERS: Table = {'D': 'fsdp', 'E': 'fsdp', 'I': 'tensor', 'F': 'tensor', 'V': 'tensor'}
# Parameters as products read them, and vectors as devices find them that hold a part of each vector of a table.
GATHERED: Table = {letter: axes for letter, axes in PARAMETERS.items() if axes != 'fsdp'}
LOOKED_UP: Table = ACTIVATIONS | {'B': 'data', 'E': 'fsdp'}

_mesh = jax.make_user_context(None)


@contextlib.contextmanager
def using_mesh(mesh: Mesh) -> Iterator[None]:
    """Inside it, or inside a function that it decorates, programs are traced for arrays on the devices of this mesh."""
    with compiled_for(mesh.devices.flat[0].platform, mesh.size), _mesh(mesh if mesh.size > 1 else None):
        yield


def device_mesh() -> Mesh | None:
    """The mesh that a program is traced for; None on one device, and where none was named."""
    return _mesh.value


def is_gathering() -> bool:
    """Whether the mesh splits parameters that products have to gather first."""
    mesh = device_mesh()
    return mesh is not None and mesh.shape.get('fsdp', 1) > 1


def is_split(letter: str) -> bool:
    """Whether the mesh spreads the axis of activations that has this letter over several devices."""
    return shard_count(letter) > 1


def shard_count(letter: str) -> int:
    """Over how many devices the mesh spreads the axis of activations that has this letter; 1 without a mesh."""
    mesh = device_mesh()
    return 1 if mesh is None else math.prod(mesh.shape[name] for name in names_of(letter, mesh, ACTIVATIONS))


def names_of(letter: str, mesh: Mesh, table: Table) -> tuple[str, ...]:
    """The axes of the mesh that split an axis with this letter; none of those that the mesh lacks."""
    axes = table.get(letter)
    return tuple(name for name in ((axes,) if isinstance(axes, str) else axes or ()) if name in mesh.shape)


def partition(letters: str, shape: tuple[int, ...], mesh: Mesh, table: Table) -> PartitionSpec:
    """How an array is split whose trailing axes have these letters; an axis that the mesh does not divide stays whole.

    Axes in front of those that have letters stay whole, as does a second one that an axis of the mesh would split.
    """
    spec: list[MeshAxes] = [None] * (len(shape) - len(letters))
    used: set[str] = set()
    for letter, size in zip(letters, shape[len(spec) :], strict=True):
        names = names_of(letter, mesh, table)
        is_split = names and not used & set(names) and size % math.prod(mesh.shape[name] for name in names) == 0
        used |= set(names) if is_split else set()
        spec.append((names[0] if len(names) == 1 else names) if is_split else None)
    return PartitionSpec(*spec)


def lay(x: Shaped[Array, '...'], letters: str, table: Table) -> Shaped[Array, '...']:
    """`x` laid over the mesh as the table says; `x` itself where there is no mesh."""
    mesh = device_mesh()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition(letters, x.shape, mesh, table)))


def spread(x: Shaped[Array, '...'], letters: str) -> Shaped[Array, '...']:
    """Activations whose axes have these letters, rows, tokens and heads spread over the mesh and the rest whole.

    Without it the compiler may split activations as the parameters are that they meet, and gather them again.
    """
    return lay(x, letters, ACTIVATIONS)


def on_own_rows(function: Callable[[Array], Array], x_BHLM: Shaped[Array, 'B H L M']) -> Shaped[Array, 'B H L *']:
    """`function`, which leaves B, H and L as they are, of what each device has of the rows and heads of `x_BHLM`.

    Where the compiler has no rule to split an operation, it gathers that of all devices; a loop that ends when no row
    needs it any more would synchronise all devices in every iteration.
    """
    mesh = device_mesh()
    if mesh is None:
        return function(x_BHLM)
    spec = partition('BHKK', x_BHLM.shape, mesh, ACTIVATIONS)  # neither L nor M is split
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x_BHLM)


def gathered(x: Shaped[Array, '...'], letters: str) -> Shaped[Array, '...']:
    """A parameter with these letters, whole along the axes that 'fsdp' splits; its gradient is split like itself."""
    return x if device_mesh() is None else _gathered(x, letters)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gathered(x: Shaped[Array, '...'], letters: str) -> Shaped[Array, '...']:
    return lay(lay(x, letters, PARAMETERS), letters, GATHERED)


def _gathered_forward(x: Shaped[Array, '...'], letters: str) -> tuple[Shaped[Array, '...'], None]:
    return _gathered(x, letters), None


def _gathered_backward(letters: str, _: None, gradient: Shaped[Array, '...']) -> tuple[Shaped[Array, '...']]:
    return (lay(gradient, letters, PARAMETERS),)


_gathered.defvjp(_gathered_forward, _gathered_backward)
