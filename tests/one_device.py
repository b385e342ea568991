"""Makes JAX show only the first of its eight emulated devices: programs for fewer devices compile and run faster."""

import functools
from collections.abc import Callable

import jax
import pytest

EIGHT = jax.devices()  # all eight devices, for tests of a folder in which JAX shows only one


def see_one_device(patch: pytest.MonkeyPatch) -> None:
    """Makes JAX show only its first device while the patch holds."""
    see_devices(patch, 1)


def see_devices(patch: pytest.MonkeyPatch, count: int) -> None:
    """Makes JAX show only its first `count` devices while the patch holds."""
    for name in ('devices', 'local_devices'):
        patch.setattr(jax, name, functools.partial(_first, count, getattr(jax, name)))
    for name in ('device_count', 'local_device_count'):
        patch.setattr(jax, name, lambda *_: count)


def _first(count: int, devices: Callable[..., list[jax.Device]], *of: str) -> list[jax.Device]:
    return devices(*of)[:count]
