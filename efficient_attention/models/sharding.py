"""Decides how arrays are sharded over devices: makes the mesh, and defines the shardings of parameters and batches.

Mesh axes, each of any size including 1:

- 'data' replicates parameters and shards the batch.
- 'fsdp' shards parameters and the batch.
- 'tensor' shards heads, feed-forward width and vocabulary.
- 'sequence' replicates parameters and shards the tokens of each row. A mesh with unsharded rows has no such axis.
"""

import logging
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.attention.device_mesh import ACTIVATIONS, PARAMETERS, partition
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.errors import InputError

# Each rule pairs a pattern of parameter paths with the letters of the parameters' last dimensions.
# `PARAMETERS` in attention/device_mesh.py maps the letters of dimensions to mesh axes.
# The first matching rule applies; parameters that match no rule are replicated.
# Other leading dimensions, such as the layer axis, are not sharded.
# Optimizer moments have the same paths as their parameters, so the rules apply to them, too.
# Modules name the dimensions by the same letters when they gather their parameters.
RULES: tuple[tuple[str, str], ...] = (
    (r'(query|key|value|distances/projection|centres/hidden)/kernel$', 'DI'),
    (r'(query|key|value)/bias$', 'I'),
    (r'attention/out/kernel$', 'ID'),
    (r'(up|gate)/kernel$', 'DF'),
    (r'(up|gate)/bias$', 'F'),
    (r'down/kernel$', 'FD'),
    (r'head/dense/kernel$', 'DV'),
    (r'(masked_lm|head|head/dense)/bias$', 'V'),
    (r'recurrent/(forward|backward)/(input|recurrent)$', 'DE'),
    (r'(token|own)(/tables/\d+)?/embedding$', 'VE'),
    (r'embedding$', 'LE'),
    (r'kernel$', 'DE'),
)
BATCH_AXES = ACTIVATIONS['B']
WHOLE = re.compile(r'/v_(row|col)/')  # Adafactor moments are replicated, because their shapes do not fit the rules


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Returns a mesh of all devices, or of the given ones. Its axes are data, fsdp and tensor; if tokens are sharded,
    also sequence.

    Raises:
        InputError: the product of the sizes is not the device count.
    """
    devices = sorted(devices or jax.devices(), key=lambda device: (device.process_index, device.id))
    rest = config.fsdp * config.sequence * config.tensor
    data = config.data or max(len(devices) // rest, 1)
    sizes = {'data': data, 'fsdp': config.fsdp, 'sequence': config.sequence, 'tensor': config.tensor}
    if config.sequence == 1:
        del sizes['sequence']
    if data * rest != len(devices):
        product = ' x '.join(f'mesh.{name} {size}' for name, size in sizes.items())
        raise InputError(f'{product} = {data * rest} devices, but there are {len(devices)}')
    mesh = Mesh(np.asarray(devices).reshape(*sizes.values()), tuple(sizes))
    check_hosts(np.vectorize(lambda device: device.process_index)(mesh.devices).reshape(data * config.fsdp, -1))
    return mesh


def check_hosts(processes: np.ndarray) -> None:
    """Raises InputError unless each process owns entire blocks of batch rows, and all processes own equally many
    blocks.

    Args:
        processes: int [data x fsdp, sequence x tensor], the process of each device of a mesh.

    Raises:
        InputError: a row block spans several processes, or the processes own different numbers of row blocks.
    """
    owners = processes[:, 0]
    _, counts = np.unique(owners, return_counts=True)
    if (processes != owners[:, None]).any() or len(set(counts)) > 1:
        raise InputError(
            f'mesh: {len(owners)} row blocks (data x fsdp) x sequence x tensor {processes.shape[1]} do not divide over '
            f'{len(np.unique(processes))} processes; the sequence axis and the tensor axis must stay within a process'
        )


def check_divisible(
    mesh: Mesh, *, batch_size: int, micro_batches: int, heads: int, field: str = 'train.batch_size'
) -> None:
    """Raises InputError unless each device gets whole rows of every micro-batch and whole attention heads."""
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    if batch_size % (shards * micro_batches):
        raise InputError(
            f'{field} {batch_size} does not divide over {shards} devices (mesh data x fsdp) '
            f'x {micro_batches} micro-batches'
        )
    if heads % mesh.shape['tensor']:
        raise InputError(f'model.heads {heads} does not divide over mesh.tensor {mesh.shape["tensor"]}')


def path_name(path: tuple[Any, ...]) -> str:
    """Returns the path of a leaf in a pytree as text, such as 'a/b/c'."""
    return jax.tree_util.keystr(path, simple=True, separator='/')


def path_names(tree: Any) -> Any:
    """Returns a pytree of the same structure, in which each leaf is replaced by its path name."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path), tree)


def dimension_letters(name: str) -> str:
    """Returns the letters of the last dimensions of the parameter with this path; '' if the parameter is replicated."""
    return '' if WHOLE.search(name) else next((letters for pattern, letters in RULES if re.search(pattern, name)), '')


def partition_spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Returns the PartitionSpec of the parameter with this path: the mesh axis that shards each dimension.

    A dimension stays unsharded if its mesh axis does not divide it, which is logged.
    """
    letters = dimension_letters(name)
    if len(letters) > len(shape):
        return PartitionSpec()
    spec = partition(letters, shape, mesh, PARAMETERS)
    for place, letter in enumerate(letters, len(shape) - len(letters)):
        axis = PARAMETERS.get(letter)
        if axis is not None and spec[place] is None and axis not in spec:
            logging.getLogger(__name__).info(
                '%s: dimension %d of %s stays whole, mesh.%s does not divide it', name, place, shape, axis
            )
    return spec


def state_shardings(abstract_state: Any, mesh: Mesh) -> Any:
    """Returns the NamedSharding of each array in a training state (parameters, optimizer moments, counters); the rules
    choose it by the array's path.

    Arrays carried from step to step are sharded like the rows and tokens of the batch.
    """

    def sharding(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        if path_name(path).startswith('carry/'):
            return carry_sharding(path_name(path), leaf.shape, mesh)
        return NamedSharding(mesh, partition_spec(path_name(path), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(sharding, abstract_state)


def carry_sharding(name: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that one training step passes to the next, such as segment memory.

    Its rows are sharded like the batch, its tokens by the letters at the end of its name.
    """
    letters = name.rpartition('_')[2]
    if 'sequence' not in mesh.shape or len(letters) != len(shape):
        return batch_sharding(mesh)
    return NamedSharding(mesh, partition(letters, shape, mesh, ACTIVATIONS))


def abstract_arrays(shapes: Any, mesh: Mesh) -> Any:
    """Returns the arrays of a state, or of a part of it, as `jax.ShapeDtypeStruct` with the shardings that the rules
    give.
    """
    shardings = state_shardings(shapes, mesh)
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), shapes, shardings)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: its rows are sharded over the data and fsdp axes of the mesh."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def to_devices(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Returns the global batch as sharded arrays. Each process contributes its contiguous block of rows."""
    return {name: jax.make_array_from_process_local_data(batch_sharding(mesh), rows) for name, rows in batch.items()}
