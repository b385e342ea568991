"""Tests the lower bound of a run's memory, computed from shapes, and that runs which fit on no device are refused."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.host_memory import host_memory
from efficient_attention.models import device_memory
from efficient_attention.models.device_memory import (
    check_fits,
    check_host_fits,
    device_memory_bytes,
    format_bytes,
    layer_input_bytes,
    state_bytes,
)
from efficient_attention.models.sharding import abstract_arrays, make_mesh

MODEL = ModelConfig(width=16, heads=2, layers=4, max_length=64)
CONFIG = RunConfig(data=DataConfig(length=64), model=MODEL)


def test_the_devices_of_a_cpu_share_the_memory_of_the_host():
    assert device_memory_bytes(jax.devices()[0]) == host_memory() // 8


def test_an_accelerator_says_what_it_has():
    device = SimpleNamespace(platform='gpu', memory_stats=lambda: {'bytes_limit': 12345})
    assert device_memory_bytes(device) == 12345
    assert device_memory_bytes(SimpleNamespace(platform='tpu', memory_stats=lambda: None)) == host_memory() // 8


def test_the_state_is_counted_as_it_lies_on_one_device():
    mesh = make_mesh(MeshConfig(fsdp=4))
    shapes = {'dense/kernel': jax.ShapeDtypeStruct((16, 3), jnp.float32), 'step': jax.ShapeDtypeStruct((), jnp.int32)}
    assert state_bytes(abstract_arrays(shapes, mesh)) == 16 * 3 * 4 // 4 + 4


def test_layers_inputs_are_those_of_compiled_programs_or_fewer():
    """The estimate is a lower bound: a compiled forward and backward pass over the layers needs at least as much."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    weights = jnp.zeros((4, 16, 16))

    def loss(weights, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()

    x = jax.ShapeDtypeStruct((32, 64, 16), jnp.float32)
    taken = jax.jit(jax.grad(loss)).lower(weights, x).compile().memory_analysis().temp_size_in_bytes
    assert 0 < layer_input_bytes(CONFIG, 32, mesh, is_kept=True) <= taken


@pytest.mark.parametrize(
    'mesh, is_kept, expected',
    [
        (MeshConfig(), True, 4 * 32 * 64 * 16 * 4 // 8),
        (MeshConfig(), False, 32 * 64 * 16 * 4 // 8),
        (MeshConfig(tensor=2), True, 4 * 32 * 64 * 16 * 4 // 4),
        (MeshConfig(fsdp=2), True, 4 * 32 * 64 * 16 * 4 // 8),
    ],
)
def test_rows_are_spread_over_the_mesh_but_not_over_tensor(mesh: MeshConfig, is_kept: bool, expected: int):
    assert layer_input_bytes(CONFIG, 32, make_mesh(mesh), is_kept=is_kept) == expected


def test_what_does_not_fit_is_one_line():
    mesh = make_mesh(MeshConfig())
    check_fits(mesh, {'parameters': 1000, 'rows': 1000})
    line = r'the run needs at least 2.0 EiB on each device \(parameters 1.0 EiB, rows 1.0 EiB\), but a device has '
    with pytest.raises(InputError, match=line):
        check_fits(mesh, {'parameters': 2**60, 'rows': 2**60})


def test_what_the_host_has_no_room_for_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_memory, 'host_memory', lambda: 2**30)
    check_host_fits(2**30, 'its tensors')
    with pytest.raises(InputError, match=r'^its tensors take 2.0 GiB, but this host has 1.0 GiB$'):
        check_host_fits(2**31, 'its tensors')


@pytest.mark.parametrize(
    'count, text',
    [(0, '0 bytes'), (1023, '1023 bytes'), (1024, '1.0 KiB'), (1536 * 2**30, '1.5 TiB'), (2**75, '32,768.0 EiB')],
)
def test_numbers_of_bytes_in_words(count: int, text: str):
    assert format_bytes(count) == text


def test_as_many_decimals_as_are_asked_for():
    assert [format_bytes(count, decimals=2) for count in (1023, 3 * 2**29)] == ['1023 bytes', '1.50 GiB']
