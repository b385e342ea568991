"""What a run holds at least, compared with the memory of its devices before any of it is asked for.

An allocator that is asked for more than there is may end the process, or leave the others of a collective waiting for
ever. A lower bound of what a run needs follows from shapes alone; what passes it may still be too large.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.host_memory import host_memory

UNITS = ('bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')


def memory_of(device: jax.Device) -> int:
    """Bytes that a device can use: its own, or of a CPU the host's, which the devices of one host share."""
    limit = (device.memory_stats() or {}).get('bytes_limit') if device.platform != 'cpu' else None
    return limit or host_memory() // jax.local_device_count()


def state_bytes(abstract_state: Any) -> int:
    """Bytes on one device of arrays that are given as `jax.ShapeDtypeStruct` with shardings."""
    shards = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(abstract_state)]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shards)


def layer_input_bytes(config: RunConfig, rows: int, mesh: Mesh, *, is_kept: bool) -> int:
    """Bytes on one device of the inputs of layers: one at a time, or those of all layers that a backward pass reads.

    Args:
        config: of the run; a reversible stack keeps two streams whatever the number of layers.
        rows: of the global batch, or of a micro-batch of it.
        mesh: over whose devices rows, and positions where it has an axis for them, are spread.
        is_kept: whether a backward pass follows.
    """
    model, length = config.model, config.data.length
    if config.task == 'fine_tuning':  # rows are padded to buckets, and none need be as long as data.length
        length = min(length, config.examples.buckets[0])
    kept = {'plain': model.layers, 'reversible': 2}[model.stack] if is_kept else 1
    spread = mesh.size // mesh.shape['tensor']
    return kept * rows * length * model.width * model.compute_dtype.itemsize // spread


def check_fits(mesh: Mesh, needed: Mapping[str, int]) -> None:
    """Raises InputError where a device of the mesh has less memory than is needed at once.

    Args:
        mesh: its devices of this process are looked at; it has none where a plan is made for devices elsewhere.
        needed: what for, in words -> bytes on one device.
    """
    own = [device for device in mesh.devices.flat if device in jax.local_devices()]
    total, there_is = sum(needed.values()), min(map(memory_of, own), default=None)
    if there_is is not None and total > there_is:
        parts = ', '.join(f'{what} {in_units(count)}' for what, count in needed.items())
        raise InputError(
            f'the run needs at least {in_units(total)} on each device ({parts}), and there are {in_units(there_is)}'
        )


def check_host_fits(needed: int, what: str) -> None:
    """Raises InputError where this host has less memory than `needed` bytes; `what` takes them, in the plural."""
    there_is = host_memory()
    if needed > there_is:
        raise InputError(f'{what} take {in_units(needed)}, and there are {in_units(there_is)}')


def in_units(count: int, *, decimals: int = 1) -> str:
    """A number of bytes in a unit that leaves up to four digits before the point, such as '15.6 GiB'."""
    power = min((max(count, 1).bit_length() - 1) // 10, len(UNITS) - 1)
    return f'{count / 1024**power:,.{decimals}f} {UNITS[power]}' if power else f'{count} bytes'
