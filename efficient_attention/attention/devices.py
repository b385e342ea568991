"""Kind and number of the devices that a program is compiled for, and the tuning constants of each kind.

They are usually those of this process; who compiles for others, such as a TPU that is not there, says so with
`compiled_for`. Every size of a step and every form of a loop or product that depends on the kind stands here, and is
looked up with `device_forms()` while a program is traced. `using_forms` changes some of them for a block of code: to
tune a size for a device, or in tests. What both say is part of the key of every cache of `jax.jit`, so that no program
traced for one kind is taken for another.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jax

from efficient_attention.errors import InputError

KINDS = {'cpu': 'cpu', 'gpu': 'gpu', 'cuda': 'gpu', 'rocm': 'gpu', 'tpu': 'tpu'}  # by the platform's name
_platform = jax.make_user_context(None)
_devices = jax.make_user_context(None)
_changes = jax.make_user_context(())
MIB = 2**20  # bytes


def device_kind() -> str:
    """'cpu', 'gpu' or 'tpu': what `compiled_for` says, else the kind of JAX's default device."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = _platform.value or getattr(device, 'platform', device) or jax.default_backend()
    return KINDS.get(platform, platform)


def device_count() -> int:
    """How many devices a program's arrays may be spread over: what `compiled_for` says, else all of JAX's."""
    return _devices.value or jax.device_count()


@contextlib.contextmanager
def compiled_for(platform: str, devices: int | None = None) -> Iterator[None]:
    """Inside it, or inside a function that it decorates, programs are traced for devices of this platform.

    Args:
        platform: as `jax.Device.platform` and `lowering_platforms` have it: 'cpu', 'gpu', 'cuda', 'rocm' or 'tpu'.
        devices: over how many the program's arrays may be spread; None = as many as said outside, else all of JAX's.

    Raises:
        InputError: the platform is neither one of these nor that of this process, or there are less than 1 devices.
    """
    if platform not in KINDS and platform != jax.default_backend():
        raise InputError(f'programs can be compiled for {", ".join(KINDS)}, not for {platform!r}')
    if devices is not None and devices < 1:
        raise InputError(f'programs can be compiled for 1 device or more, not for {devices}')
    with _platform(platform), _devices(devices or _devices.value):
        yield


@dataclasses.dataclass(frozen=True)
class DeviceForms:
    """The sizes of steps and the forms of loops and products on one kind of device.

    A step's size is given in bytes of the float32 scores that it computes. On a CPU a step should leave its scores in a
    core's cache; on other devices a step should be large enough to keep all of the device busy.

    Args:
        tile_step_bytes: of a step of softmax over tiles, where each tile visits tiles of its own choice.
        shared_tile_step_bytes: of a step of softmax over tiles, where all tiles visit the same ones. It is one large
            product, which gains from more tiles, so that on a CPU the best is larger.
        takes_turns_by_head: whether softmax over tiles computes one key head after another where one tile of all heads
            is more than a step. On devices with large steps heads may be spread over devices, which this would undo.
        dense_step_bytes: of a step of the loop over rows and heads of dense softmax, for each core; 0 = no loop, all
            scores at once. Of 2^18 to 2^22 bytes 2^20 were best at 32 to 512 positions of 12 heads of 32 (one and two
            cores of an AMD EPYC with 1 MiB of L2 each, jaxlib 0.10).
        cores: for which dense softmax chooses its steps; 0 = all that this process may use.
        has_cudnn: whether the backend `cudnn` can run.
        lsh_step_bytes: of a step of LSH attention.
        feature_key_block: positions whose features are computed at once where all queries read all keys; 0 = all of
            them. On a CPU as many as stay in its cache.
        feature_prefix_sums: whether causal sums over features are computed for all chunks at once and joined by a
            parallel prefix; else one chunk after another. A CPU computes a chunk's features again sooner than it reads
            them back from memory, so there the loop is faster.
        matrix_einsums: whether einsums become products of matrices, each left one summed over its last axis. On a CPU
            dense attention in float32 then takes 0.6 to 0.8 of the time (jaxlib 0.10, AMD EPYC, 128 to 512 positions),
            and of bfloat16 jaxlib has kernels for this form alone.
        dense_sums_in_float32: whether a bfloat16 dense layer sums in float32 and rounds afterwards. A CPU's
            instructions for bfloat16 do that; for a bfloat16 result XLA first makes all operands float32.
        codes_as_bfloat16: whether products of 8-bit codes are computed as bfloat16, which holds them exactly, with
            float32 sums. On a CPU with instructions for bfloat16 most products are then faster than jaxlib's of int8:
            6 layers of 384 take 233 in place of 276 ms for 32 rows of 128 tokens (two cores of an AMD EPYC with
            AVX512-BF16 and VNNI, jaxlib 0.10).
    """

    tile_step_bytes: int
    shared_tile_step_bytes: int
    takes_turns_by_head: bool
    dense_step_bytes: int
    cores: int
    has_cudnn: bool
    lsh_step_bytes: int
    feature_key_block: int
    feature_prefix_sums: bool
    matrix_einsums: bool
    dense_sums_in_float32: bool
    codes_as_bfloat16: bool


def has_bfloat16_instructions(cpuinfo: Path = Path('/proc/cpuinfo')) -> bool:
    """Whether the processor multiplies bfloat16 itself; False where the system does not tell."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    words = next((line.split() for line in lines if line.startswith('flags')), [])
    return not {'avx512_bf16', 'amx_bf16'}.isdisjoint(words)


CPU = DeviceForms(
    tile_step_bytes=MIB,
    shared_tile_step_bytes=4 * MIB,
    takes_turns_by_head=True,
    dense_step_bytes=MIB,
    cores=0,
    has_cudnn=False,
    lsh_step_bytes=MIB,
    feature_key_block=256,
    feature_prefix_sums=False,
    matrix_einsums=True,
    dense_sums_in_float32=True,
    codes_as_bfloat16=has_bfloat16_instructions(),
)
TPU = DeviceForms(
    tile_step_bytes=128 * MIB,
    shared_tile_step_bytes=128 * MIB,
    takes_turns_by_head=False,
    dense_step_bytes=0,
    cores=0,
    has_cudnn=False,
    lsh_step_bytes=128 * MIB,
    feature_key_block=0,
    feature_prefix_sums=True,
    matrix_einsums=False,
    dense_sums_in_float32=False,
    codes_as_bfloat16=False,
)
FORMS = {'cpu': CPU, 'gpu': dataclasses.replace(TPU, has_cudnn=True), 'tpu': TPU}


def device_forms() -> DeviceForms:
    """The forms for the devices that a program is compiled for; accelerators of an unknown kind are taken for TPUs."""
    forms = FORMS.get(device_kind(), TPU)
    return dataclasses.replace(forms, **dict(_changes.value)) if _changes.value else forms


@contextlib.contextmanager
def using_forms(**changes: Any) -> Iterator[None]:
    """Inside it, or inside a function that it decorates, programs are traced with these fields of `DeviceForms`.

    Whatever device they are compiled for. They are part of the key of every cache of `jax.jit`, as the device is.

    Raises:
        InputError: there is no such field, or the value is none that it can have.
    """
    for name, value in changes.items():
        check_change(name, value)
    with _changes(tuple(sorted((dict(_changes.value) | changes).items()))):
        yield


def check_change(name: str, value: object) -> None:
    """Raises an InputError unless `name` is a field of `DeviceForms` that can have this value."""
    current = getattr(CPU, name, None)
    if current is None:
        raise InputError(f'there is no device form {name}; see DeviceForms')
    kind = 'True or False' if isinstance(current, bool) else 'a whole number of at least 0'
    if type(value) is not type(current) or cast(int, value) < 0:
        raise InputError(f'device form {name} is {value!r}; it must be {kind}')


def cores() -> int:
    """CPU cores for which dense softmax chooses its steps: as the forms say, else all that this process may use."""
    return device_forms().cores or cores_of_process()


@functools.cache
def cores_of_process() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
