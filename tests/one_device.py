"""One of the eight emulated devices alone: programs that are not split over devices compile in less time."""

import functools
from collections.abc import Callable

import jax
import pytest


def see_one_device(patch: pytest.MonkeyPatch) -> None:
    """While the patch holds, JAX names its first device only."""
    for name in ('devices', 'local_devices'):
        patch.setattr(jax, name, functools.partial(_first, getattr(jax, name)))
    for name in ('device_count', 'local_device_count'):
        patch.setattr(jax, name, lambda *_: 1)


def _first(devices: Callable[..., list[jax.Device]], *of: str) -> list[jax.Device]:
    return devices(*of)[:1]
