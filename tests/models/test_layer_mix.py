"""Layers mixed by learned weights: the formula, and that a mix of the last layer alone is the last layer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel, LayerMix
from tests.models.test_fine_tuning import batch_of
from tests.tolerances import assert_close

ATTENTION = ModelConfig(width=16, heads=2, layers=3, vocab_size=13, max_length=16, init_std=0.3, norm_epsilon=1e-5)
LSTM = dataclasses.replace(ATTENTION, cell='lstm', bidirectional=True, norm='pre')
SHARED = dataclasses.replace(ATTENTION, sharing='all', norm='pre', final_dropout=True)
REVERSIBLE = dataclasses.replace(ATTENTION, stack='reversible', norm='pre')


def test_formula():
    mix, states = LayerMix(2), jax.random.normal(jax.random.key(0), (3, 2, 4, 5))
    assert_close(mix(states), np.asarray(states).mean(axis=0))
    mix.weights[...], mix.scale[...] = jnp.asarray([0.5, -1.0, 2.0]), jnp.asarray(1.5)
    shares = np.exp([0.5, -1.0, 2.0])
    expected = 1.5 * sum(one * np.asarray(h) for one, h in zip(shares / shares.sum(), states, strict=True))
    assert_close(mix(states), expected)
    assert mix(states.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize('config', [ATTENTION, LSTM, SHARED, REVERSIBLE], ids=['attention', 'lstm', 'shared', 'two'])
def test_the_last_of_all_states_is_what_the_encoder_gives_and_the_first_its_embeddings(config: ModelConfig):
    model = FineTuningModel(config, HeadConfig(kind='token', features='mix'), rngs=nnx.Rngs(0))
    last = FineTuningModel(config, HeadConfig(kind='token'), rngs=nnx.Rngs(0))
    batch, keys = batch_of(), jax.random.split(jax.random.key(1), 3)
    read = batch['tokens'], batch['segments']
    states = model.encoder.with_inside(*read, token_types_BL=batch['token_types'])[1].states_NBLD
    x_BLD, _ = model.encoder.embedded(*read, token_types_BL=batch['token_types'])
    assert states.shape == (4, *x_BLD.shape)
    assert_close(states[0], model.encoder.normed(x_BLD))
    model.mix.weights[...] = jnp.asarray([-1e9, -1e9, -1e9, 0.0])
    for rng in (None, keys):
        assert_close(model.encode(batch, rng), last.encode(batch, rng))
    assert_close(model(batch, rng=keys)['logits'], last(batch, rng=keys)['logits'])


def test_gradients_reach_weights_scale_and_all_layers():
    model = FineTuningModel(LSTM, HeadConfig(kind='sequence', features='mix', pooling='mean'), rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)
    gradients = jax.grad(lambda state: jnp.square(nnx.merge(graph, state)(batch_of())['logits']).sum())(state)
    assert all(leaf.any() for leaf in jax.tree.leaves(gradients['mix']))
    assert (
        jnp.abs(gradients['encoder']['stack']['layers']['recurrent']['forward']['input'][...]).max((1, 2)) > 0
    ).all()
