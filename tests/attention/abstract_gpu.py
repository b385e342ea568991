"""A mesh that stands for one absent H200, inside which Mosaic GPU kernels can be lowered."""

import contextlib

import jax


def on_abstract_gpu() -> contextlib.AbstractContextManager[object]:
    """Returns a context in which kernels for an NVIDIA H200 can be traced and lowered on any machine."""
    device = jax.sharding.AbstractDevice(device_kind='NVIDIA H200', platform='gpu', num_cores=132)
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))
