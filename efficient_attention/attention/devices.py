"""Decides which kind and number of devices a program is compiled for,
and which tuning constants each kind of device has.

By default these are the devices of this process. To compile for others, such as an absent TPU, use `using_platform`.
All step sizes, and all loops and products whose form depends on the device, are set here and read with
`device_tuning()` at trace time. `using_device_tuning` changes some constants for a block of code, for tuning or
tests. Both settings are part of the key of every `jax.jit` cache, so a program traced for one kind of device is never
used for another.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jax

from efficient_attention.errors import InputError

KINDS = {'cpu': 'cpu', 'gpu': 'gpu', 'cuda': 'gpu', 'rocm': 'gpu', 'tpu': 'tpu'}  # kind of device by platform name
_platform = jax.make_user_context(None)
_devices = jax.make_user_context(None)
_chip = jax.make_user_context(None)
_changes = jax.make_user_context(())
MIB = 2**20  # bytes
HOPPER = re.compile(r'\bG?H(20|100|200|800)\b')  # in names such as 'NVIDIA H100 80GB HBM3' and 'NVIDIA GH200 480GB'


def device_kind() -> str:
    """Returns the kind of device that programs are compiled for, 'cpu', 'gpu' or 'tpu': the kind set by
    `using_platform`, else the kind of JAX's default device.
    """
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = _platform.value or getattr(device, 'platform', device) or jax.default_backend()
    return KINDS.get(platform, platform)


def device_count() -> int:
    """Returns over how many devices a program's arrays may be sharded:
    the number set by `using_platform`, else the number of JAX's devices.
    """
    return _devices.value or jax.device_count()


def chip_name() -> str:
    """Returns the kind of chip that programs are compiled for, as in `jax.Device.device_kind`: the one set by
    `using_platform`, else that of this process's first device.
    """
    return _chip.value or jax.local_devices()[0].device_kind


def is_hopper() -> bool:
    """Returns whether programs are compiled for NVIDIA GPUs of the Hopper generation, compute capability 9.0, judged by
    the name of the chip.

    Later generations lack Hopper's matrix products of a warpgroup.
    """
    return HOPPER.search(chip_name()) is not None


@contextlib.contextmanager
def using_platform(platform: str, devices: int | None = None, chip: str | None = None) -> Iterator[None]:
    """Traces programs for devices of this platform; usable as a context manager or a function decorator.

    Args:
        platform: a name as in `jax.Device.platform` and `lowering_platforms`: 'cpu', 'gpu', 'cuda', 'rocm' or 'tpu'.
        devices: how many devices the program's arrays may be sharded over. None keeps the number of an enclosing
            `using_platform`, else all of JAX's devices.
        chip: a kind of chip as in `jax.Device.device_kind`, such as 'TPU v5 lite'. None keeps the chip of an enclosing
            `using_platform`, else the chip of this process.

    Raises:
        InputError: the platform is neither in this list nor this process's platform, or `devices` is below 1.
    """
    if platform not in KINDS and platform != jax.default_backend():
        raise InputError(f'programs can be compiled for {", ".join(KINDS)}, not for {platform!r}')
    if devices is not None and devices < 1:
        raise InputError(f'programs can be compiled for 1 device or more, not for {devices}')
    with _platform(platform), _devices(devices or _devices.value), _chip(chip or _chip.value):
        yield


@dataclasses.dataclass(frozen=True)
class DeviceTuning:
    """Tuning constants for one kind of device: sizes of loop steps, and which forms loops and matrix products take.

    A step's size is the bytes of the float32 scores that it computes. On a CPU the scores of a step should fit in a
    core's cache. On other devices a step should be large enough to keep the whole device busy.

    Args:
        tile_step_bytes: size of a step of softmax over tiles, if each tile visits its own list of tiles.
        shared_tile_step_bytes: size of a step of softmax over tiles, if all tiles visit the same list. Such a step is
            one large product, which gains from more tiles, so its best size on a CPU is larger.
        takes_turns_by_head: whether softmax over tiles computes one key head after another if one tile of all heads
            exceeds a step. On devices with large steps, heads may be sharded over devices, and a loop over heads would
            undo this.
        sums_keys_by_query: whether softmax over tiles sums the gradients of keys and values in its loop over query
            tiles, if the query tiles visit the same key tiles. Otherwise a second loop computes the weights again.
            By the compilers' estimates, a training step of BERT-base by the backend `blocked` takes 92.5 ms with one
            loop and 103 ms with two on an H200, but 192 and 168 ms on four TPU v5e chips (64 rows of 512 tokens).
        dense_step_bytes: size of a step of dense softmax's loop over rows and heads, per core; 0 = no loop, all scores
            at once. Of 2^18 to 2^22 bytes, 2^20 was fastest at 32 to 512 positions, 12 heads of 32 (one and two cores
            of an AMD EPYC with 1 MiB of L2 each, jaxlib 0.10).
        cores: number of cores for which dense softmax sizes its steps; 0 = all that this process may use.
        has_cudnn: whether the backend `cudnn` can run.
        splash_tile: number of positions of a tile of the backend `splash`, a multiple of 128; 0 = it cannot run.
        mosaic_tile: number of positions of a tile that a program of the backend `mosaic` visits, 64 or 128. All its
            kernels compile for sm_90a with both; only with 64 does none of them spill registers.
        mosaic_stages: number of visited tiles of `mosaic` that are in shared memory at once, from 2 to 4.
        lsh_step_bytes: size of a step of LSH attention.
        feature_key_block: positions whose features are computed at once if all queries read all keys; 0 = all of them.
            On a CPU, as many as fit in its cache.
        feature_prefix_sums: whether causal sums over features are computed for all chunks at once and joined by a
            parallel prefix; else one chunk after another. A CPU recomputes a chunk's features faster than it reads them
            back from memory, so the loop is faster there.
        matrix_einsums: whether einsums become matrix products whose left operands are summed over their last axis. On a
            CPU, dense attention in float32 then takes 0.6 to 0.8 of the time (jaxlib 0.10, AMD EPYC, 128 to 512
            positions). For bfloat16, jaxlib has CPU kernels only in this form.
        dense_sums_in_float32: whether a bfloat16 dense layer sums in float32 and rounds afterwards. A CPU's bfloat16
            instructions do the same; for a bfloat16 result XLA first converts all operands to float32.
        codes_as_bfloat16: whether products of 8-bit codes are computed in bfloat16, which holds them exactly, with
            float32 sums. On a CPU with bfloat16 instructions this is mostly faster than jaxlib's int8 products: 6
            layers of 384 take 233 instead of 276 ms for 32 rows of 128 tokens (two cores of an AMD EPYC with
            AVX512-BF16 and VNNI, jaxlib 0.10).
    """

    tile_step_bytes: int
    shared_tile_step_bytes: int
    takes_turns_by_head: bool
    sums_keys_by_query: bool
    dense_step_bytes: int
    cores: int
    has_cudnn: bool
    splash_tile: int
    mosaic_tile: int
    mosaic_stages: int
    lsh_step_bytes: int
    feature_key_block: int
    feature_prefix_sums: bool
    matrix_einsums: bool
    dense_sums_in_float32: bool
    codes_as_bfloat16: bool


def has_bfloat16_instructions(cpuinfo: Path = Path('/proc/cpuinfo')) -> bool:
    """Returns whether the CPU has bfloat16 instructions; False if /proc/cpuinfo does not exist."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    words = next((line.split() for line in lines if line.startswith('flags')), [])
    return not {'avx512_bf16', 'amx_bf16'}.isdisjoint(words)


CPU = DeviceTuning(
    tile_step_bytes=MIB,
    shared_tile_step_bytes=4 * MIB,
    takes_turns_by_head=True,
    sums_keys_by_query=True,
    dense_step_bytes=MIB,
    cores=0,
    has_cudnn=False,
    splash_tile=0,
    mosaic_tile=64,
    mosaic_stages=2,
    lsh_step_bytes=MIB,
    feature_key_block=256,
    feature_prefix_sums=False,
    matrix_einsums=True,
    dense_sums_in_float32=True,
    codes_as_bfloat16=has_bfloat16_instructions(),
)
ACCELERATOR = DeviceTuning(
    tile_step_bytes=128 * MIB,
    shared_tile_step_bytes=128 * MIB,
    takes_turns_by_head=False,
    sums_keys_by_query=True,
    dense_step_bytes=0,
    cores=0,
    has_cudnn=False,
    splash_tile=0,
    mosaic_tile=64,
    mosaic_stages=2,
    lsh_step_bytes=128 * MIB,
    feature_key_block=0,
    feature_prefix_sums=True,
    matrix_einsums=False,
    dense_sums_in_float32=False,
    codes_as_bfloat16=False,
)
FORMS = {
    'cpu': CPU,
    'gpu': dataclasses.replace(ACCELERATOR, has_cudnn=True),
    'tpu': dataclasses.replace(ACCELERATOR, splash_tile=512, sums_keys_by_query=False),
}


def device_tuning() -> DeviceTuning:
    """Returns the tuning constants of the kind of device that programs are compiled for;
    unknown accelerators get the constants that accelerators share.
    """
    forms = FORMS.get(device_kind(), ACCELERATOR)
    return dataclasses.replace(forms, **dict(_changes.value)) if _changes.value else forms


@contextlib.contextmanager
def using_device_tuning(**changes: Any) -> Iterator[None]:
    """Traces programs with some fields of `DeviceTuning` changed; usable as a context manager or a function decorator.

    The changes apply to all kinds of devices. They are part of the key of every `jax.jit` cache, as the device is.

    Raises:
        InputError: there is no such field, or the field cannot have this value.
    """
    for name, value in changes.items():
        check_tuning_field(name, value)
    with _changes(tuple(sorted((dict(_changes.value) | changes).items()))):
        yield


def check_tuning_field(name: str, value: object) -> None:
    """Raises an InputError unless `name` is a field of `DeviceTuning` and `value` is allowed for this field."""
    current = getattr(CPU, name, None)
    if current is None:
        raise InputError(f'unknown device constant {name}; see the fields of DeviceTuning')
    kind = 'True or False' if isinstance(current, bool) else 'a whole number of at least 0'
    if type(value) is not type(current) or cast(int, value) < 0:
        raise InputError(f'device constant {name} is {value!r}; it must be {kind}')


def cpu_core_count() -> int:
    """Returns the number of CPU cores for which dense softmax sizes its steps:
    `DeviceTuning.cores`, or all cores of the process if that is 0.
    """
    return device_tuning().cores or process_cpu_count()


@functools.cache
def process_cpu_count() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
