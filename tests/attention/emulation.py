"""Emulates Mosaic GPU kernels on the CPU, for tests that compare their results with definitions."""

import contextlib
from collections.abc import Iterator

import jax
import pytest

from tests.attention.abstract_gpu import on_abstract_gpu


@contextlib.contextmanager
def emulating_kernels() -> Iterator[None]:
    """Makes JAX emulate kernels; skips the test under JAX 0.10, which emulates no pipeline of a kernel."""
    if jax.__version_info__ < (0, 11):
        pytest.skip('JAX 0.10 emulates no pipeline of a Mosaic GPU kernel')
    from jax._src.pallas.mosaic_gpu.interpret import params  # JAX 0.10 has another module

    with on_abstract_gpu(), params.force_gpu_interpret_mode(params.InterpretGPUParams()):
        yield
