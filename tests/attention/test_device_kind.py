"""Tests the kind of device that a program is traced for: callers set it, caches depend on it, one file asks JAX
for it.
"""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import efficient_attention
from efficient_attention.attention.devices import chip_name, device_count, device_kind, using_platform
from efficient_attention.errors import InputError

ATTENTION = Path(efficient_attention.__file__).parent / 'attention'


def test_the_kind_is_that_of_this_process_unless_said_otherwise():
    assert device_kind() == 'cpu'
    with using_platform('cuda'):
        assert device_kind() == 'gpu'
        with using_platform('tpu'):
            assert device_kind() == 'tpu'
        assert device_kind() == 'gpu'
    assert device_kind() == 'cpu'


def test_a_function_that_is_decorated_runs_inside_each_time():
    kind_on_rocm = using_platform('rocm')(device_kind)
    assert [device_kind(), kind_on_rocm(), device_kind(), kind_on_rocm()] == ['cpu', 'gpu', 'cpu', 'gpu']


@pytest.mark.parametrize('device', ['tpu', jax.devices('cpu')[0]], ids=['name', 'device'])
def test_the_default_device_is_asked_before_the_default_backend(device: object, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    assert device_kind() == 'gpu'
    with jax.default_device(device):
        assert device_kind() == ('tpu' if device == 'tpu' else 'cpu')
        with using_platform('cuda'):
            assert device_kind() == 'gpu'


def test_devices_are_all_of_this_process_unless_said_otherwise():
    assert device_count() == jax.device_count() == 8
    with using_platform('cpu', 1):
        assert device_count() == 1
        with using_platform('tpu'):
            assert device_count() == 1
        with using_platform('tpu', 256):
            assert (device_kind(), device_count()) == ('tpu', 256)
    assert device_count() == 8


def test_the_chip_is_that_of_this_process_unless_said_otherwise():
    assert chip_name() == 'cpu'
    with using_platform('tpu', chip='TPU v5 lite'):
        assert chip_name() == 'TPU v5 lite'
        with using_platform('tpu', 4):
            assert chip_name() == 'TPU v5 lite'


def test_a_platform_or_a_number_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch):
    for arguments, line in (
        (('tpus',), "^programs can be compiled for cpu, gpu, cuda, rocm, tpu, not for 'tpus'$"),
        (('tpu', 0), '^programs can be compiled for 1 device or more, not for 0$'),
    ):
        with pytest.raises(InputError, match=line), using_platform(*arguments):
            pass
    monkeypatch.setattr(jax, 'default_backend', lambda: 'metal')
    with using_platform('metal'):  # This is a plugin's platform on which this process runs.
        assert device_kind() == 'metal'


def test_a_function_that_was_traced_for_some_devices_is_traced_again_for_others():
    """This also holds inside a loop's body and in a gradient that JAX caches."""
    seen: list[tuple[str, int]] = []

    @jax.custom_vjp
    def noted(x: jax.Array) -> jax.Array:
        seen.append((device_kind(), device_count()))
        return x

    noted.defvjp(lambda x: (noted(x), None), lambda _, dx: (noted(dx),))
    run = jax.jit(jax.grad(lambda x: jax.lax.scan(lambda carry, _: (noted(carry), None), x, length=2)[0]))
    one = jnp.ones(())
    devices = (('cpu', 8), ('tpu', 8), ('tpu', 4))
    for is_new in (True, False):
        for platform, count in devices:
            seen.clear()
            with using_platform(platform, count):
                run.trace(one)
            assert set(seen) == ({(platform, count)} if is_new else set())


def askers(name: str, folder: Path) -> set[str]:
    """Returns the files that call the function, or look it up in a module."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name)
    }


def test_nothing_else_asks_for_the_devices_of_this_process():
    """The only exception is the environment that a run records."""
    assert askers('default_backend', ATTENTION.parent) == {'attention/devices.py', 'workdir/environment.py'}
    assert askers('device_count', ATTENTION) == {'devices.py', 'softmax/backend_choice.py', 'synthesizer/table_loop.py'}


def test_nothing_but_the_table_of_forms_asks_for_the_kind():
    """`using_mesh` only hands on the chip of the mesh, which has the same name in JAX."""
    assert askers('device_kind', ATTENTION) == {'devices.py', 'device_mesh.py'}
