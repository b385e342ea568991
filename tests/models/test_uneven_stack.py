"""Tests that a stack of layers of different sizes computes the same as one stack for each group of equal layers."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.flops import encoder_flops
from efficient_attention.models.layer_stack import layer_mechanisms
from efficient_attention.models.uneven_stack import equal_layer_groups, layer_sizes
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from efficient_attention.modules.layer import ConstantSubLayer
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SIZES = ModelConfig(
    vocab_size=11, width=8, heads=4, layers=5, feed_forward_width=12, max_length=6, init_std=0.3, dropout_rate=0.3
)
UNEVEN = dataclasses.replace(SIZES, layer_heads=(4, 4, 0, 2, 2), layer_units=(12, 12, 12, 0, 0))
TOKENS = np.arange(12, dtype=np.int32).reshape(2, 6) % 11
SEGMENTS = np.asarray([[1] * 6, [1] * 4 + [0] * 2], np.int32)


def parts_of(config: ModelConfig) -> tuple[nnx.GraphDef, dict]:
    return drawn(lambda: Encoder(config, rngs=nnx.Rngs(0)))


def test_layers_that_are_alike_are_one_stretch():
    found = equal_layer_groups(UNEVEN)
    assert [(one.config.layers, one.config.heads, one.first) for one in found] == [(2, 4, 0), (1, 4, 2), (2, 2, 3)]
    assert [[sub.is_constant for sub in one.sub_layers] for one in found] == [
        [False, False],
        [True, False],
        [False, True],
    ]
    assert layer_sizes(SIZES) == [(4, 12)] * 5


def test_patterns_that_are_drawn_and_dropout_go_by_the_number_in_the_whole_stack():
    drawn = dataclasses.replace(UNEVEN, layer_heads=(), attention='bigbird(2, 1)')
    mechanisms = [one for own, _, first in equal_layer_groups(drawn) for one in layer_mechanisms(own, first)]
    assert tuple(mechanisms) == layer_mechanisms(drawn)


def test_cut_into_stretches_a_stack_computes_the_same_with_dropout():
    even = dataclasses.replace(SIZES, layers=4)
    even_graph, params = parts_of(even)
    params = jax.tree.map(np.array, params)
    layers = params['stack']['layers']
    for name in ('up', 'down'):  # The two lower layers lose their units, which are zero in the even stack.
        layers['feed_forward'][name]['kernel'][:2] = 0.0
    cut = dataclasses.replace(even, layer_units=(0, 0, 12, 12))
    graph, _ = nnx.split(nnx.eval_shape(lambda: Encoder(cut, rngs=nnx.Rngs(0))))
    parts = [jax.tree.map(lambda leaf, i=i: leaf[2 * i : 2 * i + 2], layers) for i in range(2)]
    parts[0]['feed_forward'] = {'bias': layers['feed_forward']['down']['bias'][:2]}
    whole = params | {'stack': {'stretches': {number: {'layers': part} for number, part in enumerate(parts)}}}

    @jax.jit
    def both(params: dict, whole: dict, keys: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        models = nnx.merge(even_graph, params), nnx.merge(graph, whole)
        return [tuple(model(TOKENS, SEGMENTS, rng=rng) for model in models) for rng in (None, keys)]

    for expected, found in both(params, whole, jax.random.split(jax.random.key(1), 2)):
        assert_close(found, expected)


def test_layers_without_heads_or_units_have_a_bias_there():
    encoder = nnx.merge(*parts_of(UNEVEN))
    middle, last = encoder.stack.stretches[1].layers, encoder.stack.stretches[2].layers
    assert isinstance(middle.attention, ConstantSubLayer) and isinstance(last.feed_forward, ConstantSubLayer)
    assert middle.feed_forward.up.kernel.shape == (1, 8, 12) and last.attention.query.kernel.shape == (2, 8, 4)
    x_BLD, activations = nnx.jit(lambda encoder: encoder.with_layer_activations(TOKENS, SEGMENTS))(encoder)
    assert activations.outputs_NBLD.shape == (5, 2, 6, 8) and activations.attention == {}
    assert_close(np.asarray(activations.outputs_NBLD)[-1], x_BLD)


def test_laid_out_for_inference_it_is_the_same():
    graph, params = parts_of(UNEVEN)
    laid_graph, laid = lay_out_for_inference(graph, jax.tree.map(np.asarray, params))
    outputs = jax.jit(
        lambda *both: [nnx.merge(*one)(TOKENS, SEGMENTS) for one in zip((graph, laid_graph), both, strict=True)]
    )
    assert_close(*outputs(params, laid))


def test_gradients_reach_every_parameter():
    graph, params = parts_of(UNEVEN)
    loss = jax.jit(jax.grad(lambda params: (nnx.merge(graph, params)(TOKENS, SEGMENTS)[:, 0, :3] ** 2).sum()))
    for path, gradient in jax.tree.leaves_with_path(jax.device_get(loss(params))):
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        assert gradient.any() or name.endswith('key/bias'), name


@pytest.mark.parametrize('sharing', ['none', 'all'])
def test_operations_are_those_of_its_layers(sharing: str):
    whole = dataclasses.replace(SIZES, sharing=sharing)
    count = 5 if sharing == 'none' else 1
    same = dataclasses.replace(whole, layer_heads=(4,) * count, layer_units=(12,) * count)
    assert encoder_flops(same, 6, predictions=2) == encoder_flops(whole, 6, predictions=2)
    half = dataclasses.replace(whole, layer_heads=(2,) * count, layer_units=(6,) * count)
    none = dataclasses.replace(whole, layer_heads=(0,) * count, layer_units=(0,) * count)
    rest = encoder_flops(none, 6, predictions=2)
    factors = dataclasses.replace(whole, ranks=('up=2', 'down=3'))
    saved = 2 * 6 * 5 * (2 * 8 * 12 - 2 * 20 - 3 * 20)
    assert encoder_flops(whole, 6, predictions=2) - encoder_flops(factors, 6, predictions=2) == saved
    layers = encoder_flops(whole, 6, predictions=2) - rest
    assert encoder_flops(half, 6, predictions=2) - rest == pytest.approx(layers / 2)
