"""A few of the eight emulated devices alone: programs that are split over fewer devices take less time."""

import functools
from collections.abc import Callable

import jax
import pytest

EIGHT = jax.devices()  # all: within a test of a folder that sees one, JAX names only that


def see_one_device(patch: pytest.MonkeyPatch) -> None:
    """While the patch holds, JAX names its first device only."""
    see_devices(patch, 1)


def see_devices(patch: pytest.MonkeyPatch, count: int) -> None:
    """While the patch holds, JAX names its first devices only."""
    for name in ('devices', 'local_devices'):
        patch.setattr(jax, name, functools.partial(_first, count, getattr(jax, name)))
    for name in ('device_count', 'local_device_count'):
        patch.setattr(jax, name, lambda *_: count)


def _first(count: int, devices: Callable[..., list[jax.Device]], *of: str) -> list[jax.Device]:
    return devices(*of)[:count]
