"""Tests the reversible stack: its formula, its gradients against autodiff, its inversion error, and memory by depth."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.reversible import inverse_error, reversible_backward, reversible_forward
from efficient_attention.modules.layer import CROSS_ATTENTION_LAYER, Layer
from efficient_attention.modules.layer_context import Context, EncodedSource
from tests.models.drawn import drawn
from tests.tolerances import assert_close

LENGTH = 12
CONFIG = ModelConfig(
    width=8, heads=2, layers=3, dropout_rate=0.3, attention_dropout_rate=0.3, norm='pre', stack='reversible',
    attention='causal', init_std=0.3,
)  # fmt: skip
LSH = {'attention': 'lsh(4, 2, causal=True)', 'shared_qk': True, 'attention_dropout_rate': 0.0}
PLAIN = {'dropout_rate': 0.0, 'attention_dropout_rate': 0.0}  # Without dropout, programs compile in half the time.
X = jax.device_put(np.random.default_rng(0).normal(size=(8, LENGTH, 8)).astype(np.float32))
IS_PADDING = (np.arange(8) == 1)[:, None] & (np.arange(LENGTH) >= LENGTH - 3)
SEGMENTS = jax.device_put(np.where(IS_PADDING, 0, np.where(np.arange(LENGTH) < 7, 1, 2)).astype(np.int32))
POSITIONS = jax.device_put(np.tile(np.arange(LENGTH, dtype=np.int32), (8, 1)))
CONTEXT = Context(SEGMENTS, POSITIONS, jax.random.split(jax.random.key(1), 8), jax.random.key(2))
# This halves the compile time; tests of the program itself compile it as users do.
QUICKLY = {'xla_backend_optimization_level': 0}
compiled = functools.partial(jax.jit, compiler_options=QUICKLY)
COTANGENT = jax.device_put(np.cos(np.arange(X.size)).reshape(X.shape).astype(np.float32))


def with_fields(**fields: Any) -> ModelConfig:
    return dataclasses.replace(CONFIG, **fields)


@functools.cache
def stack_of(config: ModelConfig) -> tuple[nnx.GraphDef, dict]:
    causal = config.relative == 'transformer_xl'
    return drawn(lambda: Stack(config, causal=causal, rngs=nnx.Rngs(0)), std=config.init_std)


def call(stack: Stack, x: jax.Array, context: Context = CONTEXT) -> jax.Array:
    return stack(x, context)


def stored(stack: Stack, x: jax.Array) -> jax.Array:
    """Computes the same function without inversion, so that ordinary autodiff stores the activations."""
    first, second = reversible_forward(
        *stack.reversible_parts(CONTEXT.with_shared_terms(stack.shared_terms(POSITIONS))), (x, x)
    )
    return (first + second) / 2


def value_and_gradients(config: ModelConfig, apply: Any) -> tuple[jax.Array, tuple]:
    graph, state = stack_of(config)

    def loss(state: nnx.State, x: jax.Array) -> jax.Array:
        return (apply(nnx.merge(graph, state), x) * COTANGENT).sum()

    return compiled(jax.value_and_grad(loss, (0, 1)))(state, X)


CASES: dict[str, dict[str, Any]] = {
    '24 layers of LSH': {'layers': 24, **LSH},
    'shared': {
        'layers': 2,
        'sharing': 'all',
        'attention': 'bigbird(2, 1)',
    },  # The layers' random draws differ.
    'in turn, with a bias': {
        'layers': 4,
        'attention': 'causal; window(3)',
        'feed_forward_chunk': 5,
        'relative': 't5',
    },
    'distances': PLAIN | {'layers': 2, 'scan_unroll': 2, 'attention': 'causal', 'relative': 'transformer_xl'},
    'a bias, shared': PLAIN | {'sharing': 'all', 'relative': 'tupe_r', 'positions': 'none'},
}


@pytest.mark.parametrize('name', CASES)
def test_gradients_equal_those_of_stored_activations(name: str):
    """Errors are at most 1e-4 of the largest entry of each array (of 1 where all are smaller); some cases have
    dropout.
    """
    config = with_fields(**CASES[name])
    actual, expected = (jax.device_get(value_and_gradients(config, apply)) for apply in (call, stored))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1])) > 1
    biases = jax.tree.leaves(actual[1][0].get('position_bias', {}))
    assert len(biases) == {'t5': 1, 'tupe_r': 9, 'transformer_xl': 2}.get(config.relative, 0)
    assert all(np.abs(leaf).max() > 0 for leaf in biases)
    assert_close(*scaled(actual, expected), gradient=True)


def scaled(actual: Any, expected: Any) -> tuple[Any, Any]:
    """Returns both trees, each array divided by the largest expected entry, or by 1 where all are smaller."""
    scales = jax.tree.map(lambda leaf: np.maximum(np.float32(1.0), np.abs(leaf).max()), expected)
    return tuple(jax.tree.map(np.divide, tree, scales) for tree in (actual, expected))


def test_layers_one_after_another_give_the_formula():
    graph, state = stack_of(CONFIG)
    layer_graph, _ = nnx.split(nnx.eval_shape(lambda: Layer(CONFIG, rngs=nnx.Rngs(0))))

    def by_hand() -> jax.Array:
        first = second = X
        for number in range(CONFIG.layers):
            layer = nnx.merge(layer_graph, jax.tree.map(lambda leaf, number=number: leaf[number], state['layers']))
            attention, feed_forward = layer.sub_layers
            context = CONTEXT.layer_context(number)
            first = first + layer.reversible_branch(attention, second, context)
            second = second + layer.reversible_branch(feed_forward, first, context)
        return (first + second) / 2

    assert_close(*compiled(lambda: (call(nnx.merge(graph, state), X), by_hand()))())


def test_three_sub_layers_alternate_and_gradients_reach_the_other_sequence():
    """Self-attention, cross-attention and feed-forward layers are compared with the formula and with stored
    activations.
    """
    config = with_fields(layers=2, **PLAIN)
    graph, state = drawn(lambda: Stack(config, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0)))
    layer_graph, _ = nnx.split(
        nnx.eval_shape(lambda: Layer(config, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0)))
    )
    states = np.random.default_rng(5).normal(size=(8, 5, 8)).astype(np.float32)
    other = EncodedSource(*jax.device_put((states, np.int32([[1, 1, 2, 2, 0]] * 8))))

    def inverted(state: nnx.State, x: jax.Array, states: jax.Array) -> jax.Array:
        read = other._replace(states_BMD=states)
        return nnx.merge(graph, state)(x, Context(SEGMENTS, POSITIONS, CONTEXT.rng, other=read))

    def by_hand(state: nnx.State, x: jax.Array, states: jax.Array) -> jax.Array:
        first = second = x
        context = CONTEXT._replace(other=other._replace(states_BMD=states))
        for number in range(config.layers):
            layer = nnx.merge(layer_graph, jax.tree.map(lambda leaf, number=number: leaf[number], state['layers']))
            for sub in layer.sub_layers:
                first, second = second, first + layer.reversible_branch(sub, second, context.layer_context(number))
        return (first + second) / 2

    def value_and_gradients(apply: Any) -> tuple:
        loss = lambda *arguments: (apply(*arguments) * COTANGENT).sum()  # noqa: E731
        return jax.device_get(compiled(jax.value_and_grad(loss, (0, 1, 2)))(state, X, other.states_BMD))

    actual, expected = value_and_gradients(inverted), value_and_gradients(by_hand)
    assert np.abs(expected[1][2]).max() > 0.1
    assert_close(*scaled(actual, expected), gradient=True)


def test_the_backward_pass_goes_through_recovered_activations():
    """A shift of the last layer's output changes the gradients, which it could not if activations were stored."""
    graph, state = stack_of(CONFIG)

    def recovered(state: nnx.State, shift: jax.Array) -> Any:
        parts = nnx.merge(graph, state).reversible_parts(CONTEXT)
        first, second = reversible_forward(*parts, (X, X))
        return reversible_backward(*parts, (first + shift * COTANGENT, second), (COTANGENT, COTANGENT))

    run = compiled(recovered)
    streams, _, gradients = jax.device_get(run(state, np.float32(0)))
    assert_close(streams, (X, X))
    shifted = jax.tree.leaves(jax.device_get(run(state, np.float32(0.5))[2]))
    assert max(np.abs(a - b).max() for a, b in zip(shifted, jax.tree.leaves(gradients), strict=True)) > 1e-2


def test_keys_decide_what_is_dropped_and_nothing_else_does():
    graph, state = stack_of(CONFIG)
    run = compiled(lambda rng: call(nnx.merge(graph, state), X, CONTEXT._replace(rng=rng)))
    first, again, other = (np.asarray(run(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2


def test_a_mesh_and_a_scan_over_batches_give_the_same_gradients():
    """Rows are spread over 8 devices; then a scan computes the rows in two parts and adds their gradients."""
    graph, state = stack_of(CONFIG)

    def gradients(state: nnx.State, x: jax.Array, context: Context, cotangent: jax.Array) -> Any:
        return jax.grad(lambda state: (call(nnx.merge(graph, state), x, context) * cotangent).sum())(state)

    expected = compiled(gradients)(state, X, CONTEXT, COTANGENT)

    rows = NamedSharding(Mesh(np.asarray(jax.devices()), ('data',)), PartitionSpec('data'))
    whole = NamedSharding(rows.mesh, PartitionSpec())
    x, cotangent, segments, positions, rng = jax.device_put((X, COTANGENT, *CONTEXT[:3]), rows)
    context = Context(segments, positions, rng, jax.device_put(CONTEXT.mechanism_rng, whole))
    spread = compiled(gradients)(jax.device_put(state, whole), x, context, cotangent)
    assert_close(jax.device_get(spread), jax.device_get(expected), gradient=True)

    def add(total: nnx.State, part: Any) -> tuple[nnx.State, None]:
        x, cotangent, *own = part
        context = Context(*own, CONTEXT.mechanism_rng)
        return jax.tree.map(jnp.add, total, gradients(state, x, context, cotangent)), None

    def in_two_parts(state: nnx.State) -> nnx.State:
        parts = jax.tree.map(lambda leaf: leaf.reshape(2, 4, *leaf.shape[1:]), (X, COTANGENT, *CONTEXT[:3]))
        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, state), parts)[0]

    assert_close(compiled(in_two_parts)(state), expected, gradient=True)


@functools.cache
def error_of(layers: int, dtype: str) -> float:
    """Returns the inversion error at width 8 with dropout."""
    graph, state = stack_of(with_fields(layers=layers, init_std=0.1))

    def measure(state: nnx.State) -> jax.Array:
        return inverse_error(*nnx.merge(graph, state).reversible_parts(CONTEXT), X, dtype=dtype)

    return float(compiled(measure)(state))


def test_inversion_loses_little_in_float32_and_much_in_bfloat16():
    errors = {(layers, dtype): error_of(layers, dtype) for layers in (6, 24) for dtype in ('float32', 'bfloat16')}
    print(errors)
    assert errors[6, 'float32'] <= errors[24, 'float32'] < 1e-5
    assert 1e-3 < errors[6, 'bfloat16'] <= errors[24, 'bfloat16'] < 1


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
def test_streams_are_float32_in_a_bfloat16_model():
    config = with_fields(dtype='bfloat16')
    graph, state = stack_of(config)
    out, kept = jax.eval_shape(
        lambda: jax.vjp(lambda state: call(nnx.merge(graph, state), X.astype('bfloat16')), state)
    )
    assert out.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(kept) if leaf.shape == X.shape} == {jnp.dtype('float32')}
    graphs = graph, stack_of(CONFIG)[0]
    sums = [compiled(lambda graph=graph: (call(nnx.merge(graph, state), X) * COTANGENT).sum())() for graph in graphs]
    assert_close(*sums, dtype='bfloat16')


def temporary_bytes(layers: int, stack: str, attention: dict[str, Any]) -> int:
    """Returns the temporary bytes of the compiled gradient, in which activations outweigh parameters."""
    config = with_fields(layers=layers, stack=stack, **attention)
    graph, state = nnx.split(nnx.eval_shape(lambda: Stack(config, rngs=nnx.Rngs(0))))
    positions = jnp.arange(256)[None]

    def loss(state: nnx.State, x: jax.Array) -> jax.Array:
        context = Context(jnp.ones_like(positions), positions, jax.random.key(0), jax.random.key(1))
        return call(nnx.merge(graph, state), x, context).sum()

    x = jax.ShapeDtypeStruct((1, 256, 8), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(state, x).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    'attention', [pytest.param({}, id='softmax'), pytest.param(LSH, id='lsh', marks=pytest.mark.slow)]
)
def test_memory_does_not_grow_with_depth(attention: dict[str, Any]):
    six, deep = (temporary_bytes(layers, 'reversible', attention) for layers in (6, 24))
    plain_six, plain = (temporary_bytes(layers, 'plain', attention) for layers in (6, 24))
    print(f'{six} bytes at 6 layers, {deep / six:.3f} times at 24; plain {plain / plain_six:.3f} times')
    assert deep <= 1.15 * six
    assert plain > 2 * plain_six and plain > 2 * six
