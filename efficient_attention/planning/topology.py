"""Parses a topology such as 'v5e:4x4', and creates devices for which programs compile without the hardware."""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from efficient_attention.errors import InputError, one_line
from efficient_attention.host_memory import host_memory
from efficient_attention.planning.chips import CHIPS, Chip

KNOWN = 'v5e:4x4, v5p:8x8x4, v6e:4x4, h200:8, cpu:8 and other sizes of these'
# This maps each kind of chip to the Python package that contains the chip's compiler.
COMPILERS = {'v5e': 'libtpu', 'v5p': 'libtpu', 'v6e': 'libtpu', 'h200': 'jax_cuda13_plugin'}
# With these variables, libtpu only compiles: it neither queries the network for the machine's type nor locks a chip.
# The machine type below has no effect, because the topology is given explicitly.
COMPILE_ONLY = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-16',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
# This describes an H200 SXM as its driver reports it, in the fields of XLA's GpuTargetConfigProto.
H200 = """
gpu_device_info {
  name: "NVIDIA H200"  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048  fpus_per_core: 128
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  l2_cache_size: 62914560  clock_rate_ghz: 1.98  memory_bandwidth: 4800000000000  device_memory_size: 150754820096
  device_address_bits: 64
  driver_version: "13.0.0"  runtime_version: "13.0.0"  compile_time_toolkit_version: "13.0.0"  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices for which a run is planned: their kind, their number, and their arrangement in a torus."""

    kind: str  # kind of device: 'v5e', 'v5p', 'v6e', 'h200' or 'cpu'
    shape: tuple[int, ...]  # sizes of the torus of TPUs; for other devices, (number of devices,)

    @property
    def device_count(self) -> int:
        """The number of devices in the topology."""
        return math.prod(self.shape)

    @property
    def chip(self) -> Chip | None:
        """The published specifications of one device; None for a CPU, because the planner knows no specifications of
        CPUs.
        """
        return CHIPS.get(self.kind)

    @property
    def memory_per_device(self) -> int:
        """The memory in bytes that a program can use on one device; emulated CPU devices share the host's memory."""
        if self.chip:
            return self.chip.memory
        return host_memory() // self.device_count


def parse_topology(text: str) -> Topology:
    """Parses a topology such as 'v5e:4x4' or 'h200:8'; raises InputError for any other text."""
    found = re.fullmatch(r'(\w+):([1-9]\d{0,5}(?:x[1-9]\d{0,5}){0,2})', text)
    if not found or found[1] not in (*CHIPS, 'cpu'):
        raise InputError(f'topology {text!r} is not known; known: {KNOWN}')
    kind, shape = found[1], tuple(int(size) for size in found[2].split('x'))
    if (len(shape) > 1) != (COMPILERS.get(kind) == 'libtpu'):
        sizes = 'the sizes of its torus, such as 4x4' if len(shape) == 1 else 'a number of devices, such as 8'
        raise InputError(f'topology {text!r}: the part after {kind}: must be {sizes}')
    return Topology(kind, shape)


def make_topology_devices(topology: Topology) -> list[jax.Device]:
    """Returns JAX devices for a topology, even if this host does not have them.

    CPU devices are emulated and can run programs. For TPUs and GPUs, programs can only be compiled.

    Raises:
        InputError: the environment has no compiler for the devices, or the compiler does not know the topology.
    """
    if topology.kind == 'cpu':
        return emulated_devices(topology.device_count)
    text, package = f'{topology.kind}:{"x".join(map(str, topology.shape))}', COMPILERS[topology.kind]
    if importlib.util.find_spec(package) is None:
        raise InputError(
            f'topology {text} needs {package}; run `make plan`, then .venv-plan/bin/efficient-attention plan'
        )
    for name, value in COMPILE_ONLY.items():
        os.environ.setdefault(name, value)
    jax.config.update('jax_platforms', 'cpu')
    try:
        description: Any = (
            topologies.get_topology_desc(text, 'tpu')
            if package == 'libtpu'
            else topologies.get_topology_desc('', 'cuda', target_config=H200, topology=f'1x1x{topology.device_count}')
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(f'topology {text}: {one_line(error)}') from None
    return list(description.devices)


def emulated_devices(count: int) -> list[jax.Device]:
    """Returns the given number of emulated CPU devices; raises InputError if JAX has already started with fewer."""
    if 'xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
        jax.config.update('jax_num_cpu_devices', count)
    devices = jax.devices('cpu')
    if len(devices) < count:
        raise InputError(f'topology cpu:{count}: JAX has started with {len(devices)} CPU devices (see XLA_FLAGS)')
    return devices[:count]
