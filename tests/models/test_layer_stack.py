"""Tests the scan over layers against layers applied one after another, and options that do not change its numbers."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.layer_stack import Stack, layer_mechanisms, mechanism_period, scan_mechanisms
from efficient_attention.modules.layer import CROSS_ATTENTION_LAYER, Layer, initial_streams, merge_streams
from efficient_attention.modules.layer_context import Context, EncodedSource, fold_into_key
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, layers=3, dropout_rate=0.3, attention_dropout_rate=0.3)
X = jax.device_put(np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32))
WEIGHTS = jax.device_put(np.cos(np.arange(X.size, dtype=np.float32)).reshape(X.shape))
SEGMENTS = jax.device_put(np.int32([[1, 1, 1, 2, 2, 0], [1] * 6]))
POSITIONS = jax.device_put(np.tile(np.arange(6, dtype=np.int32), (2, 1)))
KEYS = jax.random.split(jax.random.key(1), 2)  # Each row has one key.
SHARING = ['none', 'all']


def with_fields(**fields: Any) -> ModelConfig:
    return dataclasses.replace(CONFIG, **fields)


def abstract_stack(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    return nnx.split(nnx.eval_shape(lambda: Stack(config, rngs=nnx.Rngs(0))))


def random_parameters(config: ModelConfig) -> dict:
    """Returns random layer parameters, including biases and scales, so that each has an effect."""
    rng = np.random.default_rng(2)
    shapes = nnx.to_pure_dict(abstract_stack(config)[1])['layers']
    return jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), shapes)


def run_stack(config: ModelConfig, parameters: dict, x: jax.Array) -> jax.Array:
    stack = nnx.merge(abstract_stack(config)[0], {'layers': parameters})
    return stack(x, Context(SEGMENTS, POSITIONS, rng=KEYS))


def value_and_gradients(config: ModelConfig, parameters: dict) -> tuple[jax.Array, tuple]:
    """Returns a weighted sum of the outputs and its gradients.

    The plain sum of a normalised vector would be constant.
    """

    def loss(parameters: dict, x: jax.Array) -> jax.Array:
        return (run_stack(config, parameters, x) * WEIGHTS).sum()

    return jax.device_get(jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(parameters, X))


@functools.cache
def expected(sharing: str) -> tuple[jax.Array, tuple]:
    config = with_fields(sharing=sharing)
    return value_and_gradients(config, random_parameters(config))


@pytest.mark.parametrize('sharing', SHARING)
def test_scan_equals_the_layers_one_after_another(sharing: str):
    config = with_fields(sharing=sharing)
    parameters = random_parameters(config)
    graph, _ = nnx.split(nnx.eval_shape(lambda: Layer(config, rngs=nnx.Rngs(0))))

    def layer(x: jax.Array, index: int) -> jax.Array:
        own = parameters if sharing == 'all' else jax.tree.map(lambda leaf: leaf[index], parameters)
        return nnx.merge(graph, own)(x, SEGMENTS, POSITIONS, rng=fold_into_key(KEYS, index))

    both = jax.jit(lambda x: (run_stack(config, parameters, x), layer(layer(layer(x, 0), 1), 2)))
    assert_close(*both(X))


@pytest.mark.parametrize(
    'sharing, change',
    [
        ('none', {'remat': 'full', 'scan_unroll': 2}),
        ('none', {'remat': 'dots'}),
        ('all', {'remat': 'full', 'scan_unroll': 9}),
    ],
    ids=str,
)
def test_rematerialisation_and_unrolling_change_no_value_and_no_gradient(sharing: str, change: dict):
    config = with_fields(sharing=sharing, **change)
    value, gradients = value_and_gradients(config, random_parameters(config))
    assert_close(value, expected(sharing)[0])
    assert_close(gradients, expected(sharing)[1], gradient=True)


def test_layers_with_a_cross_attention_all_read_the_other_sequence():
    config = with_fields(layers=2, dropout_rate=0.0, attention_dropout_rate=0.0)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: Stack(config, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0))))
    layer_graph, _ = nnx.split(
        nnx.eval_shape(lambda: Layer(config, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0)))
    )
    rng = np.random.default_rng(4)
    parameters = jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), nnx.to_pure_dict(shapes))
    states = np.random.default_rng(3).normal(size=(2, 4, 16)).astype(np.float32)
    other = EncodedSource(*jax.device_put((states, np.int32([[1, 2, 2, 0], [1] * 4]))))

    def by_hand(x: jax.Array) -> jax.Array:
        for number in range(2):
            layer = nnx.merge(layer_graph, jax.tree.map(lambda leaf, number=number: leaf[number], parameters['layers']))
            x = layer(x, SEGMENTS, POSITIONS, rng=fold_into_key(KEYS, number), other=other)
        return x

    context = Context(SEGMENTS, POSITIONS, KEYS, other=other)
    assert_close(*jax.jit(lambda x: (nnx.merge(graph, parameters)(x, context), by_hand(x)))(X))


def test_a_shared_layers_gradient_is_the_sum_over_the_layers():
    copies = jax.tree.map(lambda leaf: np.stack([leaf] * 3), random_parameters(with_fields(sharing='all')))
    value, (gradients, x_gradient) = value_and_gradients(CONFIG, copies)
    shared_value, (shared_gradient, shared_x_gradient) = expected('all')
    assert_close((shared_value, shared_x_gradient), (value, x_gradient), gradient=True)
    assert_close(shared_gradient, jax.tree.map(lambda leaf: leaf.sum(0), gradients), gradient=True)


@pytest.mark.parametrize('fields', [{'layer_groups': 2}, {'inner_layers': 2}], ids=['groups', 'inner'])
def test_groups_equal_separate_layers_with_copies_and_get_the_sum_of_their_gradients(fields: dict):
    config = with_fields(sharing='all', layers=4, **fields)
    numbers, parameters = np.asarray(config.layer_to_param_index), random_parameters(config)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(parameters)} == {2}
    value, (gradients, _) = value_and_gradients(config, parameters)
    copies = jax.tree.map(lambda leaf: leaf[numbers], parameters)
    expected_value, (separate, _) = value_and_gradients(with_fields(layers=4), copies)
    assert_close(value, expected_value)
    sums = jax.tree.map(lambda leaf: np.stack([leaf[numbers == group].sum(axis=0) for group in (0, 1)]), separate)
    assert_close(gradients, sums, gradient=True)


def test_separate_layers_start_from_different_numbers():
    stack = nnx.jit(lambda: Stack(with_fields(layers=2), rngs=nnx.Rngs(0)))()
    kernels = np.asarray(stack.layers.feed_forward.up.kernel[...])
    assert kernels.shape == (2, 16, 64)
    assert np.abs(kernels[0] - kernels[1]).max() > 0.01


@pytest.mark.parametrize(
    'change',
    [{'sharing': 'all', 'remat': 'full'}, {'layers': 4, 'attention': 'causal; window(2)', 'remat': 'dots'}],
    ids=['shared', 'in turn'],
)
def test_one_bias_of_positions_serves_all_layers_and_gets_the_gradients_of_all(change: dict):
    plain = {'dropout_rate': 0.0, 'attention_dropout_rate': 0.0}
    config = with_fields(relative='t5', relative_buckets=4, relative_max_distance=4, **plain, **change)
    graph, shapes = abstract_stack(config)
    rng = np.random.default_rng(3)
    parameters = jax.tree.map(lambda leaf: 0.8 * rng.standard_normal(leaf.shape, np.float32), nnx.to_pure_dict(shapes))
    layer_graph, _ = nnx.split(nnx.eval_shape(lambda: Layer(config, rngs=nnx.Rngs(0))))

    def scanned(parameters: dict) -> jax.Array:
        return nnx.merge(graph, parameters)(X, Context(SEGMENTS, POSITIONS))

    def one_by_one(parameters: dict) -> jax.Array:
        x, bias = X, nnx.merge(graph, parameters).position_bias(POSITIONS)
        for number, mechanism in enumerate(layer_mechanisms(config)):
            own = parameters['layers']
            if config.sharing == 'none':
                own = jax.tree.map(lambda leaf, number=number: leaf[number], own)
            layer = nnx.merge(layer_graph, own)
            (x,), _ = layer.run((x,), Context(SEGMENTS, POSITIONS, bias=bias), mechanism)
        return x

    def loss(apply: Any, bias: dict) -> jax.Array:
        return (apply(parameters | {'position_bias': bias}) * WEIGHTS).sum()

    actual, expected = (
        jax.jit(jax.grad(functools.partial(loss, apply)), compiler_options={'xla_backend_optimization_level': 0})
        for apply in (scanned, one_by_one)
    )
    gradients = actual(parameters['position_bias'])
    assert np.abs(gradients['table']).max() > 1e-2
    assert_close(gradients, expected(parameters['position_bias']), gradient=True)


def lowered_gradient(config: ModelConfig, length: int) -> jax.stages.Lowered:
    graph, state = abstract_stack(config)
    positions, ones = jax.device_put((np.arange(length, dtype=np.int32)[None], np.ones((1, length), np.int32)))

    def loss(state: nnx.State, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, state)(x, Context(ones, positions, jax.random.key(0))).sum()

    x = jax.ShapeDtypeStruct((1, length, config.width), 'float32')
    return jax.jit(jax.grad(loss)).lower(state, x)


@pytest.mark.parametrize('sharing', SHARING)
def test_the_program_does_not_grow_with_depth(sharing: str):
    def lines(layers: int) -> int:
        return lowered_gradient(with_fields(layers=layers, sharing=sharing), 6).as_text().count('\n')

    assert lines(3) == lines(48)


def test_rematerialisation_keeps_less_between_forward_and_backward():
    def temporary_bytes(remat: str) -> int:
        config = with_fields(layers=12, dropout_rate=0.0, attention_dropout_rate=0.0, remat=remat)
        return lowered_gradient(config, 64).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes('full') < temporary_bytes('dots') < temporary_bytes('none')


def test_dropout_needs_a_key():
    parameters, plain = {'layers': random_parameters(CONFIG)}, with_fields(dropout_rate=0.0, attention_dropout_rate=0.0)
    stack, without_dropout = (nnx.merge(abstract_stack(config)[0], parameters) for config in (CONFIG, plain))
    run = jax.jit(
        lambda: (stack(X, Context(SEGMENTS, POSITIONS)), without_dropout(X, Context(SEGMENTS, POSITIONS, KEYS)))
    )
    assert_close(*run())


@pytest.mark.parametrize('remat', ['none', 'full'])
def test_layers_take_mechanisms_in_turn(remat: str):
    """Four layers use two mechanisms in turn: the scan of two turns equals the layers one after another."""
    config = with_fields(layers=4, attention='causal; full', remat=remat)
    parameters = random_parameters(config)
    graph, _ = nnx.split(nnx.eval_shape(lambda: Layer(config, rngs=nnx.Rngs(0))))

    def by_hand(x: jax.Array) -> jax.Array:
        for number, text in enumerate(['causal', 'full'] * 2):
            layer = nnx.merge(graph, jax.tree.map(lambda leaf, number=number: leaf[number], parameters))
            x = layer(x, SEGMENTS, POSITIONS, rng=fold_into_key(KEYS, number), mechanism=parse_mechanism(text))
        return x

    assert_close(*jax.jit(lambda x: (run_stack(config, parameters, x), by_hand(x)))(X))


def test_turns_repeat_with_the_shortest_period():
    turns = layer_mechanisms(with_fields(layers=6, attention='causal; full'))
    assert turns == tuple(map(parse_mechanism, ['causal', 'full'] * 3)) and mechanism_period(turns) == 2
    assert mechanism_period(layer_mechanisms(with_fields(layers=6))) == 1
    random = layer_mechanisms(with_fields(layers=3, attention='bigbird(2, 1)'))
    assert mechanism_period(random) == 3 and len(set(random)) == 3


def test_layers_that_only_draw_other_samples_share_a_step_of_the_scan():
    config = with_fields(layers=6, attention='causal; bigbird(2, 1)')
    fixed, drawn = scan_mechanisms(config, first=1)
    assert fixed == parse_mechanism('causal') and drawn == parse_mechanism('bigbird(2, 1)').for_layer((2, 4, 6))
    assert scan_mechanisms(with_fields(layers=1, attention='bigbird(2, 1)')) == (parse_mechanism('bigbird(2, 1)'),)


@pytest.mark.parametrize('stack', ['plain', 'reversible'])
def test_random_patterns_equal_the_layers_one_after_another(stack: str):
    config = with_fields(layers=3, attention='bigbird(2, 1)', stack=stack, norm='pre')
    parameters = random_parameters(config)
    x, ones = jnp.concatenate([X, X, X], axis=1), jnp.ones((2, 18), jnp.int32)
    positions = jnp.tile(jnp.arange(18, dtype=jnp.int32), (2, 1))
    graph = abstract_stack(config)[0]

    def by_scan(parameters: dict) -> jax.Array:
        return nnx.merge(graph, {'layers': parameters})(x, Context(ones, positions, rng=KEYS))

    def by_hand(parameters: dict) -> jax.Array:
        stack = nnx.merge(graph, {'layers': parameters})
        streams, context = (
            initial_streams(x, is_reversible=config.stack == 'reversible'),
            Context(ones, positions, KEYS),
        )
        for number, (layer, mechanism) in enumerate(
            zip(stack.parameter_layers(), layer_mechanisms(config), strict=True)
        ):
            streams, _ = layer.run(streams, context.layer_context(number), mechanism)
        return merge_streams(streams, x.dtype)

    weights = jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)
    scanned, expected = (
        jax.jit(jax.value_and_grad(lambda parameters, run=run: (run(parameters) * weights).sum()))(parameters)
        for run in (by_scan, by_hand)
    )
    assert_close(scanned, expected, gradient=True)


def test_the_program_of_random_patterns_hardly_grows_with_depth():
    def lines(layers: int) -> int:
        config = with_fields(layers=layers, attention='bigbird(64, 1)', attention_backend='blocked')
        return lowered_gradient(config, 2048).as_text().count('\n')

    assert lines(6) < 1.05 * lines(3)


@pytest.mark.parametrize('attention', ['lsh(4, 2)', 'favor(8)'])
def test_random_mechanisms_draw_for_each_layer_and_key(attention: str):
    config = with_fields(attention=attention, shared_qk=True, attention_dropout_rate=0.0, sharing='all')
    stack = nnx.merge(abstract_stack(config)[0], {'layers': random_parameters(config)})
    run = jax.jit(lambda key: stack(X, Context(SEGMENTS, POSITIONS, mechanism_rng=key)))
    first, again, other = (np.asarray(run(jax.random.key(number))) for number in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.isfinite(first).all() and not np.array_equal(first, other)
