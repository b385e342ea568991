"""Tests learned mixes of layers against the formula, and that a mix of only the last layer is the last layer."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel, LayerMix
from tests.models.drawn import drawn
from tests.models.test_fine_tuning import batch_of
from tests.tolerances import assert_close

ATTENTION = ModelConfig(width=16, heads=2, layers=3, vocab_size=13, max_length=16, init_std=0.3, norm_epsilon=1e-5)
LSTM = dataclasses.replace(ATTENTION, cell='lstm', bidirectional=True, norm='pre')
SHARED = dataclasses.replace(ATTENTION, sharing='all', norm='pre', final_dropout=True)
REVERSIBLE = dataclasses.replace(ATTENTION, stack='reversible', norm='pre')


def test_formula():
    mix, states = LayerMix(2), np.random.default_rng(0).normal(size=(3, 2, 4, 5)).astype(np.float32)
    mixed = nnx.jit(lambda mix, states: mix(states))
    assert_close(mixed(mix, states), states.mean(axis=0))
    mix.weights[...], mix.scale[...] = jnp.asarray([0.5, -1.0, 2.0]), jnp.asarray(1.5)
    shares = np.exp([0.5, -1.0, 2.0])
    expected = 1.5 * sum(one * h for one, h in zip(shares / shares.sum(), states, strict=True))
    assert_close(mixed(mix, states), expected)
    assert jax.eval_shape(mix, states.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize('config', [ATTENTION, LSTM, SHARED, REVERSIBLE], ids=['attention', 'lstm', 'shared', 'two'])
def test_the_last_of_all_states_is_what_the_encoder_gives_and_the_first_its_embeddings(config: ModelConfig):
    graph, params = drawn(lambda: FineTuningModel(config, HeadConfig(kind='token', features='mix'), rngs=nnx.Rngs(0)))
    last_graph, _ = nnx.split(
        nnx.eval_shape(lambda: FineTuningModel(config, HeadConfig(kind='token'), rngs=nnx.Rngs(0)))
    )
    params['mix'] = {'weights': np.float32([-1e9, -1e9, -1e9, 0.0]), 'scale': np.float32(1.0)}
    batch, keys = batch_of(), jax.random.split(jax.random.key(1), 3)

    @jax.jit
    def both(params: dict) -> tuple[jax.Array, list[Any]]:
        """Returns all hidden states, and pairs of arrays that should be equal."""
        model = nnx.merge(graph, params)
        last = nnx.merge(last_graph, {name: part for name, part in params.items() if name != 'mix'})
        read = batch['tokens'], batch['segments']
        states = model.encoder.with_hidden_states(*read, token_types_BL=batch['token_types'])[1].states_NBLD
        x_BLD, _ = model.encoder.embedded(*read, token_types_BL=batch['token_types'])
        pairs = [(states[0], model.encoder.normed(x_BLD)), (model.encode(batch), last.encode(batch))]
        return states, [*pairs, (model(batch, rng=keys)['logits'], last(batch, rng=keys)['logits'])]

    states, pairs = both(params)
    assert states.shape == (4, 3, 7, 16)
    for found, expected in pairs:
        assert_close(found, expected)


def test_gradients_reach_weights_scale_and_all_layers():
    head = HeadConfig(kind='sequence', features='mix', pooling='mean')
    graph, params = drawn(lambda: FineTuningModel(LSTM, head, rngs=nnx.Rngs(0)))
    loss = jax.jit(jax.grad(lambda params: jnp.square(nnx.merge(graph, params)(batch_of())['logits']).sum()))
    gradients = jax.device_get(loss(params))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradients['mix']))
    kernels = gradients['encoder']['stack']['layers']['recurrent']['forward']['input']
    assert (np.abs(kernels).max((1, 2)) > 0).all()
