"""The kind of device that a program is compiled for, on which sizes of chunks and forms of loops depend.

Nothing else in the package asks for it. The devices of a program are usually those of this process; who compiles for
others, such as a TPU that is not there, says so with `compiled_for`. What it says is part of the key of every cache of
`jax.jit`, so that no program traced for one kind is taken for another.
"""

import contextlib
from collections.abc import Iterator

import jax

KINDS = {'cuda': 'gpu', 'rocm': 'gpu'}  # platforms whose name says more than the kind
_compiled_for = jax.make_user_context(None)


def device_kind() -> str:
    """'cpu', 'gpu' or 'tpu': what `compiled_for` says, else the kind of JAX's default device."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = _compiled_for.value or getattr(device, 'platform', device) or jax.default_backend()
    return KINDS.get(platform, platform)


@contextlib.contextmanager
def compiled_for(platform: str) -> Iterator[None]:
    """Inside it, or inside a function that it decorates, programs are traced for devices of this platform.

    Args:
        platform: as `jax.Device.platform` and `lowering_platforms` have it: 'cpu', 'gpu', 'cuda', 'rocm' or 'tpu'.
    """
    with _compiled_for(platform):
        yield
