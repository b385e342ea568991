"""The devices that a program is compiled for: their kind, and how many there are.

They are usually those of this process; who compiles for others, such as a TPU that is not there, says so with
`compiled_for`. What it says is part of the key of every cache of `jax.jit`, so that no program traced for one kind is
taken for another. What follows from the kind stands in device_forms.py.
"""

import contextlib
from collections.abc import Iterator

import jax

from efficient_attention.errors import InputError

KINDS = {'cpu': 'cpu', 'gpu': 'gpu', 'cuda': 'gpu', 'rocm': 'gpu', 'tpu': 'tpu'}  # by the platform's name
_platform = jax.make_user_context(None)
_devices = jax.make_user_context(None)


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
