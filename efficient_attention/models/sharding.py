"""The layout of arrays over devices: a mesh, rules on the names of parameters, the rows of a batch.

Mesh axes: 'data' copies parameters and splits the batch; 'fsdp' splits both; 'tensor' splits heads, feed-forward
width and vocabulary. Any of them may be 1. 'sequence' copies parameters and splits the tokens of each row; a mesh
whose rows stay whole has no such axis.
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

# (pattern on the parameter's path, letters of its trailing dimensions, which `PARAMETERS` of attention/device_mesh.py
# splits); the first that matches decides, and what matches none is copied. Leading dimensions, such as the stacked
# layers', stay whole. Optimizer moments carry the same paths. Modules gather their parameters by the same letters.
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
WHOLE = re.compile(r'/v_(row|col)/')  # sums over one side of a matrix, which its rule does not fit; they are small


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh of all devices (or the given ones) with axes data, fsdp, sequence where rows are split, and tensor.

    Raises:
        InputError: the sizes do not multiply to the device count.
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
    """Checks that each process feeds rows of its own, as many as every other.

    Args:
        processes: int [data x fsdp, sequence x tensor], the process that owns each device of a mesh.

    Raises:
        InputError: a block of rows lies on several processes, or the processes own different numbers of blocks.
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


def path_names(tree: Any) -> Any:
    """A tree like this one with the name of each leaf's path in place of the leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path), tree)


def letters_of(name: str) -> str:
    """The letters of the trailing dimensions of the parameter `name`; '' for one that is copied."""
    return '' if WHOLE.search(name) else next((letters for pattern, letters in RULES if re.search(pattern, name)), '')


def partition_spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """How the parameter `name` is split; a dimension that its axis does not divide stays whole, which is logged."""
    letters = letters_of(name)
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
    """A NamedSharding for each leaf of a state (parameters, optimizer moments, counters) by the rules on names.

    What is carried from step to step lies with the rows of the batch and their tokens.
    """

    def sharding(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        if path_name(path).startswith('carry/'):
            return carry_sharding(path_name(path), leaf.shape, mesh)
        return NamedSharding(mesh, partition_spec(path_name(path), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(sharding, abstract_state)


def carry_sharding(name: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """How an array that is carried lies: with the rows, and its tokens as the letters at the end of its name say."""
    letters = name.rpartition('_')[2]
    if 'sequence' not in mesh.shape or len(letters) != len(shape):
        return batch_sharding(mesh)
    return NamedSharding(mesh, partition(letters, shape, mesh, ACTIVATIONS))


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
