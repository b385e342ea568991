"""Tests peak operations by device kind, as JAX names devices."""

import jax
import pytest

from efficient_attention.training.throughput import peak_flops


@pytest.mark.parametrize(
    ('kind', 'teraflops'),
    [
        ('NVIDIA A100-SXM4-80GB', 312),
        ('NVIDIA H100 80GB HBM3', 989.5),
        ('NVIDIA H100 PCIe', 756.5),
        ('NVIDIA H200', 989.5),
        ('TPU v4', 275),
        ('TPU v5 lite', 197),
        ('TPU v5p', 459),
        ('TPU v5', 459),
        ('TPU v6 lite', 918),
    ],
)
def test_known_devices(kind, teraflops):
    assert peak_flops(kind) == teraflops * 1e12


@pytest.mark.parametrize('kind', ['cpu', 'TPU v4 lite', 'NVIDIA GeForce RTX 4090', ''])
def test_others_are_not_guessed(kind):
    assert peak_flops(kind) is None


def test_the_devices_of_this_machine_can_be_asked():
    assert jax.default_backend() != 'cpu' or peak_flops(jax.devices('cpu')[0].device_kind) is None
