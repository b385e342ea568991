"""Tests that results and gradients of the tiled softmax do not depend on the cut into chunks."""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import using_device_tuning
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.softmax.tile_softmax import (
    sum_to_shape,
    tile_axis_to_front,
    tile_axis_to_third,
    with_empty_tile,
)
from tests.attention.cells import quick
from tests.tolerances import assert_close

S = 16


def test_small_helpers():
    x = jnp.arange(24.0).reshape(1, 2, 3, 4)
    assert sum_to_shape(x, (1, 2, 1, 1)).ravel().tolist() == [66.0, 210.0]
    padded = with_empty_tile(x)
    assert padded.shape == (1, 2, 4, 4) and not padded[:, :, 3].any() and (padded[:, :, :3] == x).all()
    assert tile_axis_to_front(x).shape == (3, 1, 2, 4)
    np.testing.assert_array_equal(tile_axis_to_third(tile_axis_to_front(x)), x)


# ---- whole passes ----


def program(
    text: str, bias: object, backend: str = 'blocked', length: int = 60, **options: object
) -> Callable[[], tuple]:
    """Returns a function that computes outputs, log-sum-exp and gradients of q, k, v and bias."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, length, 2, 8)).astype(np.float32)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, bias: object) -> tuple:
        pattern = Softmax(parse_pattern(text), S)
        out, lse = attend(q, k, v, pattern, backend=backend, bias=bias, return_lse=True, **options)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum() + jnp.sin(lse).sum(), (out, lse)

    return functools.partial(quick(jax.grad(loss, (0, 1, 2, 3), has_aux=True)), q, k, v, bias)


def slopes(scale: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    return -scale[None, :, None, None] * abs(query - key).astype(jnp.float32)


@pytest.mark.parametrize(
    'text, bias',
    [
        ('causal', np.random.default_rng(7).normal(size=(1, 2, 60, 60)).astype(np.float32)),
        ('longformer(5, 2)', jax.tree_util.Partial(slopes, jnp.asarray([0.1, 0.3]))),
        ('causal & bigbird(16, 1)', np.random.default_rng(8).normal(size=(1, 1, 1, 60)).astype(np.float32)),
    ],
    ids=['array', 'function', 'keys alone'],
)
def test_results_do_not_depend_on_the_size_of_chunks(text: str, bias: object):
    """One tile at a time and all at once give equal numbers, dropout bits and gradients, including the bias's."""
    results = []
    for size in (1, 2**30):
        with using_device_tuning(tile_step_bytes=size, shared_tile_step_bytes=size):
            results.append(program(text, bias, dropout_rate=0.2, rng=jax.random.key(1))())
    assert_close(*results, gradient=True)


@pytest.mark.parametrize(
    'text, sums_keys_by_query', [('full', True), ('full', False), ('causal', True), ('sparse_fixed(16, 4)', True)]
)
def test_tiles_that_fill_the_last_step_add_nothing_to_the_gradients_of_keys(text: str, sums_keys_by_query: bool):
    """Five tiles are computed two at a time, so the third step computes a tile again. In `full`, all tiles visit all
    tiles; in one part of `sparse_fixed`, all tiles visit the same few.
    """
    changes = {'takes_turns_by_head': False, 'sums_keys_by_query': sums_keys_by_query}
    with using_device_tuning(shared_tile_step_bytes=2 * 5 * 4 * 2 * S * S, **changes):
        results = program(text, None, length=5 * S)()
    assert_close(results, program(text, None, 'reference', length=5 * S)(), gradient=True)


@pytest.mark.parametrize('text', ['longformer(5, 2)', 'block(16)'])
def test_a_bias_that_grows_away_from_its_queries_does_not_overflow(text: str):
    """Lists are filled up with queries that do not exist, whose weight is 0 however large their bias is."""
    bias = jax.tree_util.Partial(lambda scale, query, key: scale * (key - query).astype(jnp.float32), jnp.asarray(5.0))
    for x in jax.tree.leaves(program(text, bias)()):
        assert np.isfinite(x).all()


def test_the_same_call_gives_the_same_bits():
    run = program('sparse_strided(8)', None)
    first, second = run(), run()
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('text', ['bigbird(16, 1)', 'sparse_strided(8)', 'per_head(causal, strided(4))'])
def test_nothing_is_summed_by_scattering(text: str):
    """No scatter adds to an index twice, so results do not depend on an order; this holds with grouped heads too."""
    q, k, pattern = jnp.ones((1, 60, 4, 8)), jnp.ones((1, 60, 2, 8)), Softmax(parse_pattern(text), S)
    loss = jax.grad(lambda q, k, v: attend(q, k, v, pattern, backend='blocked').sum(), (0, 1, 2))
    program = str(jax.make_jaxpr(loss)(q, k, k))
    unique = re.findall(r'scatter[\w-]*\[.*?unique_indices=(\w+)', program, re.DOTALL)
    assert set(unique) <= {'True'} and len(unique) == (6 if text.startswith('per_head') else 0)


def looked_up(table: jax.Array, shift: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """Computes a bias from a table [H, 9] by clipped distance; `shift` is an integer."""
    return jnp.moveaxis(table[:, jnp.clip(query - key, -4, 4)[:, 0] + shift], 0, 1)


def test_a_bias_function_may_have_whole_numbers_among_its_parameters():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 40, 2, 8)), jnp.float32)
    table, shift = np.random.default_rng(1).normal(size=(2, 9)).astype(np.float32), jnp.asarray(4)

    def loss(table: jax.Array, backend: str) -> jax.Array:
        bias = jax.tree_util.Partial(looked_up, table, shift)
        return (attend(q, q, q, Softmax(parse_pattern('causal'), S), bias=bias, backend=backend) ** 2).sum()

    both_ways = quick(lambda table: [jax.grad(loss)(table, backend) for backend in ('blocked', 'reference')])
    assert_close(*both_ways(table), gradient=True)


@pytest.mark.parametrize('shape', [(3, 2, 1, 1, 1), (5, 1), (1, 3, 1, 1)], ids=str)
def test_a_bias_function_that_returns_another_shape_is_refused(shape: tuple[int, ...]):
    q = jax.ShapeDtypeStruct((1, 40, 4, 8), jnp.float32)
    with pytest.raises(ValueError, match='the bias function returned .* it must broadcast to'):
        jax.eval_shape(
            lambda q: attend(q, q, q, Softmax(tile=S), bias=lambda *_: jnp.ones(shape), backend='blocked'), q
        )


def test_a_bias_function_may_return_fewer_axes_and_another_float():
    q = np.random.default_rng(0).normal(size=(1, 40, 2, 8)).astype(np.float32)

    def bias(query: jax.Array, key: jax.Array) -> jax.Array:
        return (query - key)[0, 0].astype(jnp.bfloat16)

    ways = quick(lambda q: [attend(q, q, q, Softmax(tile=S), bias=bias, backend=x) for x in ('blocked', 'reference')])
    assert_close(*ways(q))
