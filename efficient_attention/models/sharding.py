"""The layout of arrays over devices: a mesh, rules on the names of parameters, the rows of a batch.

Mesh axes: 'data' copies parameters and splits the batch; 'fsdp' splits both; 'tensor' splits heads, feed-forward
width and vocabulary. Any axis may be 1.
"""

import logging
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.errors import InputError

# (pattern on the parameter's path, axes of its trailing dimensions); the first that matches decides, and what matches
# none is copied. Leading dimensions, such as the stacked layers', stay whole. Optimizer moments carry the same paths.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r'(query|key|value|up|distances/projection)/kernel$', ('fsdp', 'tensor')),
    (r'(query|key|value|up)/bias$', ('tensor',)),
    (r'(out|down)/kernel$', ('tensor', 'fsdp')),
    (r'token/embedding$', ('tensor', 'fsdp')),
    (r'(tables/\d+|head/own)/embedding$', ('tensor', 'fsdp')),
    (r'(masked_lm|head)/bias$', ('tensor',)),
    (r'head/dense/kernel$', ('fsdp', 'tensor')),
    (r'head/dense/bias$', ('tensor',)),
    (r'(position|token_type)/embedding$', (None, 'fsdp')),
    (r'kernel$', ('fsdp', None)),
)
BATCH_AXES = ('data', 'fsdp')


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh of all devices (or the given ones) with axes data, fsdp, tensor.

    Raises:
        InputError: the sizes do not multiply to the device count.
    """
    devices = sorted(devices or jax.devices(), key=lambda device: (device.process_index, device.id))
    rest = config.fsdp * config.tensor
    data = config.data or max(len(devices) // rest, 1)
    if data * rest != len(devices):
        raise InputError(
            f'mesh.data {data} x mesh.fsdp {config.fsdp} x mesh.tensor {config.tensor} = {data * rest} devices, '
            f'but there are {len(devices)}'
        )
    mesh = Mesh(np.asarray(devices).reshape(data, config.fsdp, config.tensor), ('data', 'fsdp', 'tensor'))
    check_hosts(np.vectorize(lambda device: device.process_index)(mesh.devices).reshape(data * config.fsdp, -1))
    return mesh


def check_hosts(processes: np.ndarray) -> None:
    """Checks that each process feeds rows of its own, as many as every other.

    Args:
        processes: int [data x fsdp, tensor], the process that owns each device of a mesh.

    Raises:
        InputError: a block of rows lies on several processes, or the processes own different numbers of blocks.
    """
    owners = processes[:, 0]
    _, counts = np.unique(owners, return_counts=True)
    if (processes != owners[:, None]).any() or len(set(counts)) > 1:
        raise InputError(
            f'mesh: {len(owners)} row blocks (data x fsdp) x tensor {processes.shape[1]} do not divide over '
            f'{len(np.unique(processes))} processes; the tensor axis must stay within a process'
        )


def check_divisible(
    mesh: Mesh, *, batch_size: int, micro_batches: int, heads: int, field: str = 'train.batch_size'
) -> None:
    """Raises InputError unless each device gets whole rows of each micro-batch and whole heads."""
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    if batch_size % (shards * micro_batches):
        raise InputError(
            f'{field} {batch_size} does not divide over {shards} devices (mesh data x fsdp) '
            f'x {micro_batches} micro-batches'
        )
    if heads % mesh.shape['tensor']:
        raise InputError(f'model.heads {heads} does not divide over mesh.tensor {mesh.shape["tensor"]}')


def path_name(path: tuple[Any, ...]) -> str:
    """A tree path as 'a/b/c'."""
    return jax.tree_util.keystr(path, simple=True, separator='/')


def partition_spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """How the parameter `name` is split; a dimension that its axis does not divide stays whole, which is logged."""
    axes = next((axes for pattern, axes in RULES if re.search(pattern, name)), ())
    if len(axes) > len(shape):
        return PartitionSpec()
    spec: list[str | None] = [*[None] * (len(shape) - len(axes)), *axes]
    for place, axis in enumerate(spec):
        if axis is not None and shape[place] % mesh.shape[axis]:
            logging.getLogger(__name__).info(
                '%s: dimension %d of %s stays whole, mesh.%s does not divide it', name, place, shape, axis
            )
            spec[place] = None
    return PartitionSpec(*spec)


def state_shardings(abstract_state: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of a state (parameters, optimizer moments, counters) by the rules on names.

    What is carried from step to step lies with the rows of the batch.
    """

    def sharding(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        if path_name(path).startswith('carry/'):
            return batch_sharding(mesh)
        return NamedSharding(mesh, partition_spec(path_name(path), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(sharding, abstract_state)


def abstract_arrays(shapes: Any, mesh: Mesh) -> Any:
    """The arrays of a state, or of a part of it, as `jax.ShapeDtypeStruct` with the shardings that they have."""
    shardings = state_shardings(shapes, mesh)
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), shapes, shardings)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def to_devices(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """The global batch as sharded arrays, from this process's contiguous block of its rows."""
    return {name: jax.make_array_from_process_local_data(batch_sharding(mesh), rows) for name, rows in batch.items()}
