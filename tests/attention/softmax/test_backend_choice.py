"""Tests which backend 'auto' takes for softmax attention; test_attend.py tests that each backend equals the
reference.
"""

import logging

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.choice_log import log_choice
from efficient_attention.attention.devices import using_device_tuning, using_platform
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import Causal, Window
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.softmax.backend_choice import may_hold_all_pairs
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.cells import inputs


def test_auto_logs_its_choice_once(caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    arrays, _ = inputs(7)
    with caplog.at_level(logging.INFO):
        for mechanism in (Softmax(), Softmax(), Softmax(Causal() & Window(2))):
            jax.eval_shape(lambda *x, mechanism=mechanism: attend(*x, mechanism), *arrays)
    assert [record.message for record in caplog.records] == [
        'attention: dense over full',
        'attention: dense over causal & window(2)',
    ]


def test_auto_says_what_kernels_lack(caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    shape = jax.ShapeDtypeStruct((1, 600, 1, 8), jnp.float32)
    with caplog.at_level(logging.INFO), using_platform('gpu'):
        jax.eval_shape(lambda q: attend(q, q, q, Softmax(), dropout_rate=0.1, dropout_rng=jax.random.key(0)), shape)
    lacks = (
        'cudnn has no inputs of type float32, no attention dropout; mosaic has no NVIDIA Hopper GPU on this machine, '
    )
    lacks += 'no inputs of type float32'
    assert [record.message for record in caplog.records] == [f'attention: blocked over full ({lacks})']


def test_auto_is_dense_for_few_pairs_alone():
    def largest(length: int) -> int:
        shape = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        traced = jax.jit(lambda q: attend(q, q, q, Softmax(Causal()))).trace(shape)
        return max(variable.aval.size for equation in traced.jaxpr.eqns for variable in equation.outvars)

    assert largest(64) >= 64 * 64
    assert largest(1024) < 1024 * 1024


@pytest.mark.parametrize('length, backend', [(360, 'dense'), (368, 'blocked')])
def test_a_relative_term_makes_fewer_pairs_many(length: int, backend: str, caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    q, table = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32), jax.ShapeDtypeStruct((9, 1, 8), jnp.float32)
    with caplog.at_level(logging.INFO):
        jax.eval_shape(lambda q, table: attend(q, q, q, Softmax(Causal()), relative=Relative(q, table)), q, table)
    assert caplog.records[-1].message.startswith(f'attention: {backend} over ')


# 2^21 pairs are 1,448 positions. The other patterns keep less than 0.8 of the pairs.
@pytest.mark.parametrize(
    'pattern, length, options, devices, backend',
    [
        ('full', 1448, 'one core', 1, 'dense'),
        ('full', 1449, 'one core', 1, 'blocked'),
        ('causal', 1024, 'one core', 1, 'blocked'),
        ('full', 1024, '', 1, 'dense'),
        ('full', 1024, 'segments dropout', 1, 'dense'),
        ('causal', 1024, '', 1, 'blocked'),
        ('full', 1448, '', 1, 'dense'),
        ('full', 1449, '', 1, 'blocked'),
        ('block(64)', 1024, '', 1, 'blocked'),
        ('causal & window(300)', 1024, '', 1, 'blocked'),
        ('full', 1024, 'bias', 1, 'blocked'),
        ('full', 1024, 'bfloat16', 1, 'blocked'),
        ('full', 1024, '', 8, 'blocked'),
    ],
)
def test_more_pairs_are_dense_where_a_loop_holds_those_of_a_head(
    pattern: str, length: int, options: str, devices: int, backend: str, caplog: pytest.LogCaptureFixture
):
    log_choice.cache_clear()
    q = jax.ShapeDtypeStruct((2, length, 2, 8), 'bfloat16' if options == 'bfloat16' else 'float32')
    given = {'bias': lambda queries, keys: (queries - keys).astype(jnp.float32)} if options == 'bias' else {}
    if 'dropout' in options:
        ones = jnp.ones((2, length), jnp.int32)
        given = {'query_segments': ones, 'key_segments': ones, 'dropout_rate': 0.1, 'dropout_rng': jax.random.key(0)}
    number = 1 if options == 'one core' else 2
    with caplog.at_level(logging.INFO), using_platform('cpu', devices), using_device_tuning(cores=number):
        jax.eval_shape(lambda q: attend(q, q, q, Softmax(parse_pattern(pattern)), **given), q)
    assert caplog.records[-1].message.startswith(f'attention: {backend} over ')


@pytest.mark.parametrize(
    'backend, length, may',
    [('auto', 512, True), ('auto', 513, False), ('dense', 512, True), ('blocked', 8, False), ('splash', 8, False)],
)
def test_all_pairs_are_held_of_short_rows_and_by_backends_without_tiles_alone(backend: str, length: int, may: bool):
    assert may_hold_all_pairs(backend, length, length) is may
