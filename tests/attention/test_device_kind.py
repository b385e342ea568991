"""The kind of device that a program is traced for: said by its caller, part of every cache, and asked in one place."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import efficient_attention
from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_kind import compiled_for, device_kind
from efficient_attention.attention.parsing import parse_mechanism

SOURCES = sorted(Path(efficient_attention.__file__).parent.rglob('*.py'))


def test_it_is_that_of_this_process_unless_said_otherwise():
    assert device_kind() == 'cpu'
    with compiled_for('cuda'):
        assert device_kind() == 'gpu'
        with compiled_for('tpu'):
            assert device_kind() == 'tpu'
    assert device_kind() == compiled_for('rocm')(lambda: 'cpu')() == 'cpu'
    assert compiled_for('rocm')(device_kind)() == 'gpu'
    with jax.default_device(jax.devices('cpu')[0]):
        assert device_kind() == 'cpu'


def test_a_function_that_was_traced_for_one_kind_is_traced_again_for_another():
    """Also inside: a loop's body and a gradient that JAX keeps."""
    kinds: list[str] = []

    @jax.custom_vjp
    def noted(x: jax.Array) -> jax.Array:
        kinds.append(device_kind())
        return x

    noted.defvjp(lambda x: (noted(x), None), lambda _, dx: (noted(dx),))
    run = jax.jit(jax.grad(lambda x: jax.lax.scan(lambda carry, _: (noted(carry), None), x, length=2)[0]))
    one = jnp.ones(())
    for platform, kind in (('cpu', 'cpu'), ('tpu', 'tpu'), ('cpu', ''), ('tpu', '')):
        kinds.clear()
        with compiled_for(platform):
            run.trace(one)
        assert set(kinds) == ({kind} if kind else set())


@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
@pytest.mark.parametrize('text', ['causal', 'lsh(64, 2)', 'favor(16)', 'favor(16, causal=True)', 'linear(causal=True)'])
def test_every_mechanism_is_lowered_in_the_form_for_its_devices(text: str, platform: str):
    """From a CPU, one after another from one jitted function: no program of one kind is given to another."""
    mechanism = parse_mechanism(text)
    x, rng = jax.ShapeDtypeStruct((1, 2048, 2, 16), 'float32'), jax.eval_shape(lambda: jax.random.key(0))
    run = jax.jit(lambda q, rng: attend(q, q, q, mechanism, rng=rng))
    here = run.lower(x, rng).as_text()
    with compiled_for(platform):
        there = run.trace(x, rng).lower(lowering_platforms=(platform,)).as_text()
    assert there.count('stablehlo.while') < here.count('stablehlo.while') or there != here
    assert run.lower(x, rng).as_text() == here


def test_nothing_else_asks_for_the_devices_of_this_process():
    """But for the environment that a run notes down."""
    asking = [
        path.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if isinstance(node, ast.Attribute) and node.attr == 'default_backend'
    ]
    assert asking == ['device_kind.py', 'environment.py']
