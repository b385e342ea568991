"""Tests the sizes and forms for each kind of device: each has an effect, can be changed, and is part of every cache."""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import (
    ACCELERATOR,
    CPU,
    FORMS,
    DeviceTuning,
    cpu_core_count,
    device_tuning,
    has_bfloat16_instructions,
    using_device_tuning,
    using_platform,
)
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.softmax import dense_loop
from efficient_attention.attention.softmax.cudnn import check_supported
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.int8 import int8_matmul
from tests.attention.abstract_gpu import on_abstract_gpu
from tests.attention.requests import make_request

X, RNG = jax.ShapeDtypeStruct((1, 2048, 2, 16), jnp.float32), jax.eval_shape(lambda: jax.random.key(0))


def test_they_follow_the_devices_that_are_compiled_for():
    assert device_tuning() is CPU
    for platform, kind in (('cuda', 'gpu'), ('rocm', 'gpu'), ('tpu', 'tpu'), ('cpu', 'cpu')):
        with using_platform(platform):
            assert device_tuning() is FORMS[kind]


def test_an_accelerator_of_an_unknown_kind_has_no_kernels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, 'default_backend', lambda: 'metal')
    assert device_tuning() is ACCELERATOR
    assert not ACCELERATOR.has_cudnn and ACCELERATOR.splash_tile == 0


def test_changes_hold_inside_and_add_up():
    with using_device_tuning(tile_step_bytes=7):
        with using_platform('tpu'), using_device_tuning(cores=3):
            assert device_tuning() == dataclasses.replace(FORMS['tpu'], tile_step_bytes=7, cores=3)
            with using_device_tuning(tile_step_bytes=8):
                assert device_tuning().tile_step_bytes == 8
        assert device_tuning() == dataclasses.replace(CPU, tile_step_bytes=7)
    assert device_tuning() is CPU
    assert using_device_tuning(cores=5)(cpu_core_count)() == 5


@pytest.mark.parametrize(
    'line, found', [('avx2 avx_vnni', False), ('avx512_bf16', True), ('amx_tile amx_bf16', True), ('', False)]
)
def test_what_the_processor_says_of_itself_is_read(tmp_path: Path, line: str, found: bool):
    path = tmp_path / 'cpuinfo'
    assert not has_bfloat16_instructions(path)
    path.write_text(f'processor\t: 0\nmodel name\t: avx512_bf16x\nflags\t\t: fpu {line}\n\n')
    assert has_bfloat16_instructions(path) == found


def test_cores_are_those_of_this_process_unless_said_otherwise():
    assert cpu_core_count() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    'changes, line',
    [
        ({'chunk_bytes': 1}, '^unknown device constant chunk_bytes; see the fields of DeviceTuning$'),
        ({'cores': -1}, 'device constant cores is -1; it must be a whole number of at least 0'),
        (
            {'feature_key_block': 2.0},
            'device constant feature_key_block is 2.0; it must be a whole number of at least 0',
        ),
        ({'has_cudnn': 1}, 'device constant has_cudnn is 1; it must be True or False'),
    ],
)
def test_what_cannot_be_is_refused(changes: dict, line: str):
    with pytest.raises(InputError, match=line), using_device_tuning(**changes):
        pass
    assert device_tuning() is CPU


def test_programs_of_changed_forms_are_traced_anew():
    seen: list[DeviceTuning] = []
    run = jax.jit(lambda x: (seen.append(device_tuning()), x)[1])
    for size in (1, 2, 1):
        with using_device_tuning(tile_step_bytes=size):
            run.trace(jnp.ones(()))
    run.trace(jnp.ones(()))
    assert seen == [*(dataclasses.replace(CPU, tile_step_bytes=size) for size in (1, 2)), CPU]


def attended(text: str) -> str:
    """Returns the program of an attention call of 2,048 positions."""
    return attention(text).lower(X, RNG).as_text()


def attention(text: str) -> Any:
    """Returns an attention call, jitted."""
    mechanism = parse_mechanism(text)
    return jax.jit(lambda q, rng: attend(q, q, q, mechanism, rng=rng))


@using_platform('cpu', 1)
@using_device_tuning(cores=1)
def dense_softmax() -> str:
    """Returns the program of dense softmax over many rows, for one CPU core."""
    x = jax.ShapeDtypeStruct((32, 64, 12, 8), jnp.float32)
    return jax.jit(lambda q: attend(q, q, q, Softmax(), backend='dense')).lower(x).as_text()


def one_row_of_dense_softmax() -> str:
    """Returns the program of a loop over one row, whose scores have 3 MiB."""
    x = jax.ShapeDtypeStruct((1, 256, 12, 8), jnp.float32)
    return jax.jit(lambda q: dense_loop.attend_by_rows(make_request(q, q, q, Softmax()))).lower(x).as_text()


def einsum() -> str:
    """Returns the program of logits from arrays whose head axis is between positions and width."""
    x = jax.ShapeDtypeStruct((2, 3, 4, 5), jnp.float32)
    return jax.jit(lambda x: float32_einsum('BLHK,BMHK->BHLM', x, x)).lower(x).as_text()


def dense_layer() -> str:
    """Returns the program of a bfloat16 layer."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Dense(4, 6, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))))
    x = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16)
    return jax.jit(lambda state, x: nnx.merge(graph, state)(x)).lower(state, x).as_text()


def product_of_codes() -> str:
    """Returns the program of an int8 matrix product."""
    codes = jax.ShapeDtypeStruct((4, 4), jnp.int8)
    return jax.jit(lambda codes: int8_matmul(codes, codes)).lower(codes).as_text()


def cudnn() -> str:
    """Returns the refusal of the cuDNN backend for a call that it could compute, or 'served'."""
    x = jnp.ones((1, 8, 2, 8), jnp.bfloat16)
    try:
        check_supported(make_request(x, x, x, Softmax()))
    except NotImplementedError as error:
        return str(error)
    return 'served'


def mosaic() -> str:
    """Returns the traced program of the mosaic backend for a call that it can compute."""
    x = jax.ShapeDtypeStruct((1, 128, 2, 64), jnp.bfloat16)
    with using_platform('gpu', 1, 'NVIDIA H200'), on_abstract_gpu():
        return str(jax.make_jaxpr(lambda q: attend(q, q, q, Softmax(), backend='mosaic'))(x))


def splash() -> str:
    """Returns the traced program of the splash backend for a call that it can compute."""
    x = jax.ShapeDtypeStruct((1, 512, 2, 8), jnp.bfloat16)
    return str(jax.make_jaxpr(lambda q: attend(q, q, q, Softmax(), backend='splash'))(x))


def gradients_of_blocked() -> str:
    """Returns the traced program of the gradients of full attention on the backend `blocked`."""
    x = jax.ShapeDtypeStruct((1, 128, 2, 8), jnp.float32)
    loss = jax.grad(lambda q, k, v: attend(q, k, v, Softmax(), backend='blocked').sum(), (0, 1, 2))
    return str(jax.make_jaxpr(loss)(x, x, x))


# For each tuning field: two values, and a program that depends on it.
CASES = {
    'tile_step_bytes': (2**13, 2**20, functools.partial(attended, 'causal & window(100)')),
    'shared_tile_step_bytes': (2**13, 2**22, functools.partial(attended, 'full')),
    'takes_turns_by_head': (
        False,
        True,
        using_device_tuning(tile_step_bytes=2**13)(functools.partial(attended, 'causal')),
    ),
    'sums_keys_by_query': (False, True, gradients_of_blocked),
    'dense_step_bytes': (0, 2**20, dense_softmax),
    'cores': (1, 8, one_row_of_dense_softmax),
    'has_cudnn': (False, True, cudnn),
    'splash_tile': (128, 256, splash),
    'mosaic_tile': (64, 128, mosaic),
    'mosaic_stages': (2, 3, mosaic),
    'lsh_step_bytes': (2**13, 2**20, functools.partial(attended, 'lsh(64, 2)')),
    'feature_key_block': (256, 512, functools.partial(attended, 'favor(16)')),
    'feature_prefix_sums': (False, True, functools.partial(attended, 'linear(causal=True)')),
    'matrix_einsums': (False, True, einsum),
    'dense_sums_in_float32': (False, True, dense_layer),
    'codes_as_bfloat16': (False, True, product_of_codes),
}


def test_every_form_is_tried():
    assert {field.name for field in dataclasses.fields(DeviceTuning)} == CASES.keys()


@pytest.mark.parametrize('name', CASES)
def test_a_form_decides_the_program(name: str):
    one, other, program = CASES[name]
    programs = []
    for value in (one, other, one):
        with using_device_tuning(**{name: value}):
            programs.append(program())
    assert programs[0] == programs[2] != programs[1]


@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
@pytest.mark.parametrize(
    'text, loops, loops_there',
    [
        ('causal', 2, 0),
        ('lsh(64, 2)', 2, 2),
        ('favor(16)', 2, 2),
        ('favor(16, causal=True)', 3, 2),
        ('linear(causal=True)', 3, 2),
    ],
)
def test_every_mechanism_is_lowered_in_the_form_for_its_devices(text: str, loops: int, loops_there: int, platform: str):
    """One jitted function lowers for the CPU and then for another platform; neither gets the other's program."""
    run = attention(text)

    def lowered() -> str:
        return run.trace(X, RNG).lower(lowering_platforms=(platform,)).as_text()

    form_of_a_cpu = lowered()
    with using_platform(platform):
        form_of_the_platform = lowered()
    assert [form.count('stablehlo.while') for form in (form_of_a_cpu, form_of_the_platform)] == [loops, loops_there]
    assert form_of_the_platform != form_of_a_cpu == lowered()
