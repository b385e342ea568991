"""Tests position biases against their formulas, written out pair by pair: values and gradients, on every backend."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import attend
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.position_bias import (
    PositionBias,
    alibi_slopes,
    all_pairs_bias,
    bias_of_differences,
    t5_bucket_numbers,
)
from efficient_attention.modules.layer_context import Context
from tests.models.drawn import drawn
from tests.tolerances import assert_close

LENGTH = 130  # The length is more than two tiles.
CONFIG = ModelConfig(
    width=12, heads=3, head_width=4, max_length=LENGTH, positions='none', relative='t5', init_std=0.3,
    relative_buckets=8, relative_max_distance=20, relative_cls_reset=True,
)  # fmt: skip
KINDS: dict[str, tuple[dict[str, Any], bool]] = {  # fields, and whether the stack is causal
    'alibi': ({'relative': 'alibi', 'relative_buckets': 32, 'relative_max_distance': 128}, True),
    't5': ({}, False),
    't5 causal': ({}, True),
    'tupe_r': ({'relative': 'tupe_r'}, False),
    'tupe causal': ({'relative': 'tupe', 'relative_buckets': 32, 'relative_max_distance': 128}, True),
}
# The second row packs two texts; positions restart at the second one.
POSITIONS, FIRST = jax.device_put(
    (np.int32([[*range(LENGTH)], [*range(71), *range(LENGTH - 71)]]), np.int32([[*range(LENGTH)]]))
)
SEGMENTS = jax.device_put(np.int32([[1] * LENGTH, [1] * 71 + [2] * (LENGTH - 71)]))
Q, K, V = jax.device_put([*np.random.default_rng(0).normal(size=(3, 2, LENGTH, 3, 4)).astype(np.float32)])
# compiles in half the time
compiled = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})
# The slopes of three heads are the two slopes of two heads, then the first one of four heads.
SLOPES = [2.0**-4, 2.0**-8, 2.0**-2]


@functools.cache
def bias_of(name: str, backend: str = 'auto') -> tuple[nnx.GraphDef, dict]:
    """Returns a position bias with random parameters, also where they start at 0."""
    fields, causal = KINDS[name]
    config = dataclasses.replace(CONFIG, **fields, attention_backend=backend)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: PositionBias(config, causal=causal, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(1)
    draw = functools.partial(rng.normal, 0.0, 0.5)
    params = jax.tree.map(lambda leaf: draw(leaf.shape).astype(np.float32), nnx.to_pure_dict(shapes))
    return graph, jax.device_put(params)


def bucket(difference: int, count: int, most: int, causal: bool) -> int:
    """Returns the table row of one position difference, computed with integers.

    The wide bucket k starts at exact (most / exact)^(k / wide).
    """
    own = count if causal else count // 2
    distance = max(-difference, 0) if causal else abs(difference)
    exact, later = own // 2, 0 if causal or difference <= 0 else own
    if distance < exact:
        return later + distance
    wide = own - exact
    reached = [k for k in range(wide) if distance**wide * exact**k >= most**k * exact**wide]
    return later + exact + reached[-1]


def formula(name: str, params: dict) -> jax.Array:
    """Returns the bias [B, H, L, L], written out."""
    fields, causal = KINDS[name]
    kind, has_reset = fields.get('relative', 't5'), 'resets' in params
    differences = np.arange(LENGTH)[None] - np.arange(LENGTH)[:, None]
    values = jnp.zeros((2, 3, LENGTH, LENGTH))
    if kind == 'alibi':
        return (
            values - jnp.asarray(SLOPES)[None, :, None, None] * jnp.asarray(abs(differences), jnp.float32)[None, None]
        )
    if 'table' in params:
        rows = [bucket(int(difference), 8, 20, causal) for difference in differences.flat]
        chosen = params['table'][np.asarray(rows)].reshape(LENGTH, LENGTH, 3)
        values = values + chosen.transpose(2, 0, 1)[None]
    if kind == 't5':
        return values
    own = params['untied']
    table = own['position']['embedding']
    centred = table - table.mean(-1, keepdims=True)
    table = centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-12)
    x = (table * own['norm']['scale'][None] + own['norm']['bias'][None])[POSITIONS]
    q, k = (x @ own[name]['kernel'] + own[name]['bias'][None, None] for name in ('query', 'key'))
    q, k = (x.reshape(2, LENGTH, 3, 4) for x in (q, k))
    values = values + jnp.einsum('blhk,bmhk->bhlm', q, k) / math.sqrt(2 * 4)
    if has_reset:
        first, second = params['resets'] + (params['table'][np.asarray([4, 8])] if 'table' in params else 0.0)
        is_first = (POSITIONS == 0)[:, None]
        values = jnp.where(is_first[:, :, None], second[None, :, None, None], values)
        values = jnp.where(is_first[..., None], first[None, :, None, None], values)
    return values


def value_and_gradients(name: str, backend: str, bias: Any) -> tuple[jax.Array, Any]:
    """Returns a loss of attention over a window, and its gradients, with the bias that `bias` makes of its
    parameters.
    """
    _, causal = KINDS[name]
    mechanism = parse_mechanism('causal & window(90)' if causal else 'window(50)')

    def loss(params: dict, q: jax.Array) -> jax.Array:
        own = bias(params)
        segments = {'query_segments': SEGMENTS, 'key_segments': SEGMENTS}
        out = attend(q, K, V, mechanism, bias=own, backend=backend, **segments)
        return (out * jnp.cos(jnp.arange(Q.size, dtype=jnp.float32)).reshape(Q.shape)).sum()

    return jax.device_get(compiled(jax.value_and_grad(loss, (0, 1)))(bias_of(name)[1], Q))


@pytest.mark.parametrize('name', [name for name in KINDS if name != 't5'])  # 'tupe_r' also has the table of T5.
def test_attention_and_its_gradients_equal_those_of_the_array_written_out(name: str):
    expected = value_and_gradients(name, 'reference', functools.partial(formula, name))
    for backend in ('dense', 'blocked'):
        graph, _ = bias_of(name, backend)
        actual = value_and_gradients(name, backend, lambda params, graph=graph: nnx.merge(graph, params)(POSITIONS))
        assert_close(actual, expected, gradient=True)
    leaves = jax.tree.leaves_with_path(expected[1][0])
    assert all(np.abs(leaf).max() > 1e-4 for path, leaf in leaves if not is_key_bias(path, name))


def is_key_bias(path: tuple, name: str) -> bool:
    """Returns whether a parameter is the bias of position keys of a model without [CLS].

    This bias adds one number to a whole row of logits, so it changes nothing.
    """
    return 'key' in jax.tree_util.keystr(path) and path[-1].key == 'bias' and 'resets' not in bias_of(name)[1]


@pytest.mark.parametrize('heads', [1, 2, 8, 12, 20])
def test_slopes_are_those_of_the_paper(heads: int):
    slopes = alibi_slopes(heads)
    assert len(set(slopes)) == heads and all(0 < slope < 1 for slope in slopes)
    below = 2 ** (heads.bit_length() - 1)
    assert slopes[:below] == [2 ** (-8 * h / below) for h in range(1, below + 1)]
    assert set(slopes[below:]) < set(alibi_slopes(2 * below)) - set(slopes[:below]) or heads == below
    assert slopes[below:] == sorted(slopes[below:], reverse=True)


@pytest.mark.parametrize('causal', [False, True], ids=['both directions', 'causal'])
@pytest.mark.parametrize('count, most', [(32, 128), (8, 20), (4, 3), (64, 1000)])
def test_buckets(count: int, most: int, causal: bool):
    differences = np.arange(-2 * most, 2 * most + 1)
    numbers = t5_bucket_numbers(differences, count, most, causal=causal)
    assert numbers.tolist() == [bucket(int(difference), count, most, causal) for difference in differences]
    unused = {count // 2}  # This is the first row of later keys, which [CLS] uses.
    if most > 3:
        assert set(numbers.tolist()) == set(range(count)) - (set() if causal else unused)


def test_the_buckets_of_t5_start_by_the_width_where_matrices_do():
    config = dataclasses.replace(CONFIG, width=400, heads=200, relative_buckets=32, kernel_init='fan_in', init_std=1.0)
    table = np.asarray(jax.jit(lambda: PositionBias(config, causal=False, rngs=nnx.Rngs(0)).table[...])())
    np.testing.assert_allclose(table.std(), 400**-0.5, rtol=0.05)


def test_differences_beyond_the_largest_share_a_value_and_places_do_not_matter():
    table = np.random.default_rng(1).normal(size=(2 * 3 + 1, 2)).astype(np.float32)

    @jax.jit
    def values(table: jax.Array, shift: int) -> jax.Array:
        places = jnp.arange(12) + shift
        return bias_of_differences(table, places[None, None, :, None], places[None, None, None])

    found = np.asarray(values(table, 0))
    np.testing.assert_array_equal(found, values(table, 1000))
    np.testing.assert_array_equal(found, jax.jit(all_pairs_bias, static_argnums=1)(table, 12))
    np.testing.assert_array_equal(found[0, :, 0, 3:], np.repeat(table[-1][:, None], 9, axis=1))
    np.testing.assert_array_equal(found[0, :, 5, 3], table[1])


def test_positions_before_the_first_text_shift_nothing_for_alibi_and_t5():
    """Untied positions do change, because they are places in a text."""
    for name, is_relative in (('alibi', True), ('t5', True), ('tupe causal', False)):
        graph, params = bias_of(name, 'blocked')

        @jax.jit
        def values(params: dict, places: jax.Array, graph: nnx.GraphDef = graph) -> jax.Array:
            return nnx.merge(graph, params)(FIRST)(places[None, None, :, None], places[None, None, None])

        places = np.arange(20, dtype=np.int32)
        first, moved = (np.asarray(values(params, x)) for x in (places, places + 7))
        assert bool((first == moved).all()) == is_relative


def test_short_rows_share_one_array_and_long_or_blocked_ones_a_function():
    dense, blocked = (nnx.merge(*bias_of('t5', backend)) for backend in ('auto', 'blocked'))
    assert jax.eval_shape(dense, POSITIONS).shape == (1, 3, LENGTH, LENGTH) and callable(blocked(POSITIONS))
    assert callable(dense(jax.device_put(np.zeros((1, 513), np.int32))))


def test_rows_of_cls_are_alike():
    """Ke et al. 2020, section 3.2: [CLS] has one bias to all places, and all places have one bias to [CLS]."""
    graph, params = bias_of('tupe_r')
    places = jax.device_put(np.arange(9, dtype=np.int32))

    @jax.jit
    def bias(params: nnx.State) -> jax.Array:
        return nnx.merge(graph, params)(FIRST)(places[None, None, :, None], places[None, None, None])

    values = np.asarray(bias(params))
    assert (values[:, :, 0] == values[:, :, 0, :1]).all() and (values[:, :, 1:, 0] == values[:, :, 1:2, 0]).all()
    assert len(np.unique(values[0, 0, 1:, 1:])) > 9


def test_parameters():
    def count(**fields: Any) -> int:
        shape = {'width': 768, 'heads': 12, 'head_width': 64, 'max_length': 512, 'positions': 'none'}
        config = ModelConfig(**shape, layers=1, **fields)
        stack = nnx.eval_shape(lambda: Stack(config, rngs=nnx.Rngs(0)))
        state = nnx.state(stack.position_bias) if stack.position_bias is not None else {}
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))

    tupe = 512 * 768 + 2 * 768 + 2 * (768 * 768 + 768) + 2 * 12
    assert count() == count(relative='alibi') == 0
    assert count(relative='t5') == 32 * 12
    assert count(relative='tupe') == tupe and count(relative='tupe_r') == tupe + 33 * 12
    assert count(relative='tupe_r', relative_cls_reset=False) == tupe - 2 * 12 + 32 * 12


@pytest.mark.parametrize('relative', ['t5', 'tupe_r'])
def test_no_gradient_reaches_a_later_token(relative: str):
    config = ModelConfig(
        width=12, heads=3, max_length=16, attention='causal', positions='none', norm='pre', relative=relative,
        init_std=0.3,
    )  # fmt: skip
    stack, places = nnx.merge(*drawn(lambda: Stack(config, causal=True, rngs=nnx.Rngs(0)))), (0, 7, 15)

    def outputs(x: jax.Array) -> jax.Array:
        weights, ones = jnp.cos(jnp.arange(12, dtype=jnp.float32)), jnp.ones((1, 16), jnp.int32)
        return (stack(x, Context(ones, jnp.arange(16)[None])) @ weights)[0, np.asarray(places)]

    x = np.random.default_rng(2).normal(size=(1, 16, 12)).astype(np.float32)
    rows = np.asarray(compiled(jax.jacrev(outputs))(x))
    for place, row in zip(places, np.linalg.norm(rows[:, 0], axis=-1), strict=True):
        assert not row[place + 1 :].any() and (row[: place + 1] > 0).all()


def test_a_row_beyond_the_table_is_one_line():
    with pytest.raises(
        InputError, match=r'^a row of 131 positions is beyond the position table, model\.max_length 130$'
    ):
        nnx.merge(*bias_of('tupe_r'))(jax.device_put(np.zeros((1, LENGTH + 1), np.int32)))


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
@pytest.mark.parametrize('name', ['t5', 'tupe_r'])
def test_bfloat16_stays_near_float32(name: str):
    fields, causal = KINDS[name]
    config = dataclasses.replace(CONFIG, **fields, dtype='bfloat16', attention_backend='blocked')
    low, _ = nnx.split(nnx.eval_shape(lambda: PositionBias(config, causal=causal, rngs=nnx.Rngs(0))))
    exact, params = bias_of(name, 'blocked')
    places = np.arange(9, dtype=np.int32)

    @jax.jit
    def both(params: dict, places: jax.Array) -> list[jax.Array]:
        pair = places[None, None, :, None], places[None, None, None]
        return [nnx.merge(graph, params)(POSITIONS)(*pair) for graph in (low, exact)]

    near, expected = both(params, places)
    assert near.dtype == jnp.float32
    assert_close(near, expected, dtype='bfloat16')
