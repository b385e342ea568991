"""Tests which axis of a mesh splits which axis of an array, and that without a mesh there is no constraint."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from efficient_attention.attention.device_mesh import (
    ACTIVATIONS,
    GATHERED,
    PARAMETERS,
    Table,
    device_mesh,
    gather_parameter,
    has_fsdp_axis,
    is_axis_sharded,
    partition,
    shard_activations,
    using_mesh,
)
from efficient_attention.attention.devices import device_count

NAMES = ('data', 'fsdp', 'tensor')
MESH = Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), NAMES)
ONE = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1, 1), NAMES)
ROWS = ('data', 'fsdp')


@pytest.mark.parametrize(
    'letters, shape, table, spec',
    [
        ('BLD', (8, 6, 4), ACTIVATIONS, (ROWS, None, None)),
        ('BLHK', (8, 6, 4, 2), ACTIVATIONS, (ROWS, None, 'tensor', None)),
        ('BLF', (8, 6, 4), ACTIVATIONS, (ROWS, None, 'tensor')),
        ('BPV', (8, 6, 7), ACTIVATIONS, (ROWS, None, None)),  # 7 vocabulary entries do not divide.
        ('BLD', (2, 6, 4), ACTIVATIONS, (None, None, None)),  # 2 rows do not divide over 4 devices.
        ('DF', (4, 8), PARAMETERS, ('fsdp', 'tensor')),
        ('FD', (3, 8, 4), PARAMETERS, (None, 'tensor', 'fsdp')),  # The array has 3 stacked layers.
        ('DE', (4, 8), PARAMETERS, ('fsdp', None)),  # Both letters name the mesh axis fsdp.
        ('DE', (3, 8), PARAMETERS, (None, 'fsdp')),
        ('LE', (6, 8), PARAMETERS, (None, 'fsdp')),
        ('DF', (4, 8), GATHERED, (None, 'tensor')),
    ],
)
def test_which_axis_of_the_mesh_splits_which_letter(letters: str, shape: tuple, table: Table, spec: tuple):
    assert partition(letters, shape, MESH, table) == PartitionSpec(*spec)


def test_a_mesh_without_an_axis_leaves_whole_what_that_axis_would_split():
    mesh = Mesh(np.asarray(jax.devices()[:2]), ('tensor',))
    assert partition('BLHK', (8, 6, 4, 2), mesh, ACTIVATIONS) == PartitionSpec(None, None, 'tensor', None)


def test_the_mesh_is_named_inside_alone():
    assert device_mesh() is None and not has_fsdp_axis()
    with using_mesh(MESH):
        assert device_mesh() is MESH and device_count() == 8 and has_fsdp_axis()
        with using_mesh(ONE):
            assert device_mesh() is None and device_count() == 1 and not has_fsdp_axis()
    assert device_mesh() is None


@pytest.mark.parametrize('shape, letters', [((2, 2, 2), 'BHF'), ((8, 1, 1), 'B'), ((1, 1, 8), 'HF'), ((1, 1, 1), '')])
def test_which_letters_several_devices_share(shape: tuple, letters: str):
    mesh = Mesh(np.asarray(jax.devices()[: np.prod(shape)]).reshape(shape), NAMES)
    with using_mesh(mesh):
        assert ''.join(filter(is_axis_sharded, 'BLHFD')) == letters
    assert not is_axis_sharded('B')


def program(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return shard_activations(x @ gather_parameter(kernel, 'DF'), 'BF').sum()


def text_of(mesh: Mesh | None) -> str:
    step = jax.value_and_grad(program, argnums=1)
    arrays = jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32)
    return jax.jit(step if mesh is None else using_mesh(mesh)(step)).lower(*arrays).as_text()


def test_without_a_mesh_and_on_one_device_nothing_is_said():
    assert 'sharding' in text_of(MESH)
    assert text_of(None) == text_of(ONE)
    assert not re.search(r'sharding|call', text_of(ONE))


def test_a_parameter_is_gathered_and_its_gradient_lies_like_itself():
    rng = np.random.default_rng(0)
    x, kernel = rng.standard_normal((8, 4), np.float32), rng.standard_normal((4, 8), np.float32)
    step = jax.jit(using_mesh(MESH)(jax.value_and_grad(program, argnums=1)))
    value, gradient = step(x, kernel)
    assert gradient.sharding.spec == PartitionSpec('fsdp', 'tensor')
    np.testing.assert_allclose(value, (x @ kernel).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, np.tile(x.sum(axis=0)[:, None], 8), rtol=1e-5, atol=1e-6)
