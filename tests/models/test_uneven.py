"""A stack of layers that differ in size is the stack of its stretches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.flops import encoder_flops
from efficient_attention.models.inference_layout import for_inference
from efficient_attention.models.stack import layer_mechanisms
from efficient_attention.models.uneven import layer_sizes, stretches
from efficient_attention.modules.layer import Constant
from tests.tolerances import assert_close

SIZES = ModelConfig(
    vocab_size=11, width=8, heads=4, layers=5, feed_forward_width=12, max_length=6, init_std=0.3, dropout_rate=0.3
)
UNEVEN = dataclasses.replace(SIZES, layer_heads=(4, 4, 0, 2, 2), layer_units=(12, 12, 12, 0, 0))
TOKENS = jnp.arange(12).reshape(2, 6) % 11
SEGMENTS = jnp.array([[1] * 6, [1] * 4 + [0] * 2])


def test_layers_that_are_alike_are_one_stretch():
    found = stretches(UNEVEN)
    assert [(one.config.layers, one.config.heads, one.first) for one in found] == [(2, 4, 0), (1, 4, 2), (2, 2, 3)]
    assert [[sub.is_constant for sub in one.sub_layers] for one in found] == [
        [False, False],
        [True, False],
        [False, True],
    ]
    assert layer_sizes(SIZES) == [(4, 12)] * 5


def test_patterns_that_are_drawn_and_dropout_go_by_the_number_in_the_whole_stack():
    drawn = dataclasses.replace(UNEVEN, layer_heads=(), attention='bigbird(2, 1)')
    mechanisms = [one for own, _, first in stretches(drawn) for one in layer_mechanisms(own, first)]
    assert tuple(mechanisms) == layer_mechanisms(drawn)


def test_cut_into_stretches_a_stack_computes_the_same_with_dropout():
    even = dataclasses.replace(SIZES, layers=4)
    encoder = Encoder(even, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(encoder))
    layers = params['stack']['layers']
    upper = layers['feed_forward']
    for name in ('up', 'down'):  # the two lower layers lose their units, which are zero in the even stack
        upper[name]['kernel'] = upper[name]['kernel'].at[:2].set(0.0)
    even_graph, _ = nnx.split(encoder)
    cut = dataclasses.replace(even, layer_units=(0, 0, 12, 12))
    graph, _ = nnx.split(nnx.eval_shape(lambda: Encoder(cut, rngs=nnx.Rngs(0))))
    parts = [jax.tree.map(lambda leaf, i=i: leaf[2 * i : 2 * i + 2], layers) for i in range(2)]
    parts[0]['feed_forward'] = {'bias': layers['feed_forward']['down']['bias'][:2]}
    whole = params | {'stack': {'stretches': {number: {'layers': part} for number, part in enumerate(parts)}}}
    for rng in (None, jax.random.split(jax.random.key(1), 2)):
        expected = nnx.merge(even_graph, params)(TOKENS, SEGMENTS, rng=rng)
        assert_close(nnx.merge(graph, whole)(TOKENS, SEGMENTS, rng=rng), expected)


def test_layers_without_heads_or_units_have_a_bias_there():
    encoder = Encoder(UNEVEN, rngs=nnx.Rngs(0))
    middle, last = encoder.stack.stretches[1].layers, encoder.stack.stretches[2].layers
    assert isinstance(middle.attention, Constant) and isinstance(last.feed_forward, Constant)
    assert middle.feed_forward.up.kernel.shape == (1, 8, 12) and last.attention.query.kernel.shape == (2, 8, 4)
    x_BLD, taps = encoder.tapped(TOKENS, SEGMENTS)
    assert taps.outputs_NBLD.shape == (5, 2, 6, 8) and taps.attention == {}
    assert_close(taps.outputs_NBLD[-1], x_BLD)


def test_laid_out_for_inference_it_is_the_same():
    encoder = Encoder(UNEVEN, rngs=nnx.Rngs(0))
    graph, state = nnx.split(encoder)
    graph, params = for_inference(graph, nnx.to_pure_dict(state))
    assert_close(nnx.merge(graph, params)(TOKENS, SEGMENTS), encoder(TOKENS, SEGMENTS))


def test_gradients_reach_every_parameter():
    graph, state = nnx.split(Encoder(UNEVEN, rngs=nnx.Rngs(0)))
    loss = jax.jit(jax.grad(lambda state: (nnx.merge(graph, state)(TOKENS, SEGMENTS)[:, 0, :3] ** 2).sum()))
    for path, gradient in nnx.to_flat_state(loss(state)):
        assert np.asarray(gradient[...]).any() or path[-2:] == ('key', 'bias'), path


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
