"""Tests that the text of a topology names devices, or is refused in one line."""

import importlib.util

import jax
import pytest

from efficient_attention.errors import InputError
from efficient_attention.host_memory import host_memory
from efficient_attention.planning.topology import Topology, make_topology_devices, parse_topology

WITH_LIBTPU, WITH_CUDA = (
    pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f'needs {package}: make plan')
    for package in ('libtpu', 'jax_cuda13_plugin')
)


def test_texts():
    assert parse_topology('v5e:4x4') == Topology('v5e', (4, 4))
    assert parse_topology('v5p:8x8x4').device_count == 256 and parse_topology('h200:8').device_count == 8
    assert parse_topology('v5e:4x4').memory_per_device == parse_topology('v5e:2x2').memory_per_device
    assert parse_topology('cpu:2').memory_per_device == 4 * parse_topology('cpu:8').memory_per_device > 2**28
    assert parse_topology('cpu:2').memory_per_device == host_memory() // 2


@pytest.mark.parametrize(
    'text, message',
    [
        ('v9:4x4', 'is not known; known: v5e:4x4'),
        ('v5e', 'is not known'),
        ('cpu:0', 'is not known'),
        ('v5e:4x', 'is not known'),
        ('v5e:16', 'must be the sizes of its torus'),
        ('h200:2x4', 'must be a number of devices'),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_topology(text)


def test_devices_of_a_cpu_are_those_of_this_process():
    assert make_topology_devices(parse_topology('cpu:2')) == jax.devices()[:2]
    with pytest.raises(InputError, match='cpu:99: JAX has started with 8 CPU devices'):
        make_topology_devices(parse_topology('cpu:99'))


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda _: None)
    for text, package in (('v5e:2x2', 'libtpu'), ('h200:8', 'jax_cuda13_plugin')):
        with pytest.raises(InputError, match=f'{text} needs {package}; run `make plan`'):
            make_topology_devices(parse_topology(text))


@WITH_LIBTPU
def test_devices_of_a_tpu():
    devices = make_topology_devices(parse_topology('v5e:2x2'))
    assert len(devices) == 4 and devices[0].platform == 'tpu'
    with pytest.raises(InputError, match='v5e:3x5'):
        make_topology_devices(parse_topology('v5e:3x5'))


@WITH_CUDA
def test_devices_of_a_gpu():
    devices = make_topology_devices(parse_topology('h200:8'))
    assert len(devices) == 8 and devices[0].device_kind == 'NVIDIA H200'
