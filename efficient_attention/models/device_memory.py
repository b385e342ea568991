"""Checks that a run can fit the device memory, by a lower bound that is computed before the run allocates memory.

An allocator that runs out of memory may end the process, or leave other processes waiting forever in a collective. The
bound follows only from shapes, so a run that passes the check may still be too large.
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


def device_memory_bytes(device: jax.Device) -> int:
    """Returns the number of bytes of memory that a program can use on a device.

    For a CPU, the result is the host's memory divided by its number of devices.
    """
    return device_memory_limit(device) or host_memory() // jax.local_device_count()


def device_memory_limit(device: jax.Device) -> int | None:
    """Returns the number of bytes that JAX may allocate on a device; None for a CPU, or if JAX does not know it."""
    return (device.memory_stats() or {}).get('bytes_limit') if device.platform != 'cpu' else None


def program_bytes(program: jax.stages.Compiled) -> int:
    """Returns the bytes that a device needs to run a compiled program: arguments, results, temporary arrays, code."""
    memory: Any = program.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes  # a donated argument holds its result
    return memory.argument_size_in_bytes + results + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes


def state_bytes(abstract_state: Any) -> int:
    """Returns the bytes per device of sharded arrays, which are given as `jax.ShapeDtypeStruct` with shardings."""
    shards = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(abstract_state)]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shards)


def layer_input_bytes(config: RunConfig, rows: int, mesh: Mesh, *, is_kept: bool) -> int:
    """Returns the bytes per device of the layer inputs that exist at once: of all layers if a backward pass follows,
    else of one layer.

    Args:
        config: the run's config. A reversible stack keeps two streams at any number of layers.
        rows: number of rows of the global batch, or of one micro-batch.
        mesh: the devices over which rows are sharded, and positions if the mesh has an axis for them.
        is_kept: whether a backward pass follows.
    """
    model, length = config.model, config.data.length
    if config.task == 'fine_tuning':  # rows are padded to buckets, which may be shorter than data.length
        length = min(length, config.examples.buckets[0])
    kept = {'plain': model.layers, 'reversible': 2}[model.stack] if is_kept else 1
    spread = mesh.size // mesh.shape['tensor']
    return kept * rows * length * model.width * model.compute_dtype.itemsize // spread


def check_fits(mesh: Mesh, needed: Mapping[str, int]) -> None:
    """Raises InputError if a device of the mesh has less memory than the run's arrays need together.

    Args:
        mesh: only the devices of this process are checked. If the mesh has none of them, nothing is checked.
        needed: purpose, in words -> bytes per device.
    """
    own = [device for device in mesh.devices.flat if device in jax.local_devices()]
    total, there_is = sum(needed.values()), min(map(device_memory_bytes, own), default=None)
    if there_is is not None and total > there_is:
        parts = ', '.join(f'{what} {format_bytes(count)}' for what, count in needed.items())
        raise InputError(
            f'the run needs at least {format_bytes(total)} on each device ({parts}), but a device has '
            f'{format_bytes(there_is)}'
        )


def check_host_fits(needed: int, what: str) -> None:
    """Raises InputError if this host has less memory than `needed` bytes.

    The message starts with `what`, a plural noun such as 'its tensors'.
    """
    there_is = host_memory()
    if needed > there_is:
        raise InputError(f'{what} take {format_bytes(needed)}, but this host has {format_bytes(there_is)}')


def format_bytes(count: int, *, decimals: int = 1) -> str:
    """Returns a number of bytes as text such as '15.6 GiB', with at most four digits before the decimal point."""
    power = min((max(count, 1).bit_length() - 1) // 10, len(UNITS) - 1)
    return f'{count / 1024**power:,.{decimals}f} {UNITS[power]}' if power else f'{count} bytes'
