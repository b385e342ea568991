"""Tests separate directions: each reads only its own states, and the states of both are joined."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.bidirectional_stacks import DirectionNorms, direction_config
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.layer_stack import Stack
from efficient_attention.modules.layer_context import Context
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(
    width=12,
    layers=2,
    vocab_size=11,
    cell='lstm',
    bidirectional=True,
    directions_apart=True,
    positions='none',
    token_types=0,
    init_std=0.4,
    norm='pre',
    norm_epsilon=1e-5,
)
TOKENS = np.random.default_rng(0).integers(1, 11, (3, 7), np.int32)
SEGMENTS = np.asarray([[1] * 7, [1, 1, 1, 2, 2, 2, 0], [0, 1, 1, 1, 0, 0, 0]], np.int32)


def encoder_of(**fields: object) -> Encoder:
    config = dataclasses.replace(CONFIG, **fields)
    return nnx.merge(*drawn(lambda: Encoder(config, rngs=nnx.Rngs(0)), std=0.4))


def test_a_direction_is_half_as_wide():
    half = direction_config(dataclasses.replace(CONFIG, embedding_width=5, feed_forward_width=20))
    assert (half.width, half.embedding_width, half.recurrent_state_width, half.feed_forward_width) == (6, 5, 6, 10)
    assert not half.bidirectional and direction_config(CONFIG).embedding_width == 6


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_it_is_two_stacks_one_of_which_reads_the_row_from_its_end(norm: str):

    @nnx.jit
    def run(encoder: Encoder) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        places = jnp.zeros_like(TOKENS)
        x_BLE = encoder.embeddings(TOKENS, places, places)
        assert x_BLE.shape == (3, 7, 6)
        ahead = encoder.stack.ahead(x_BLE, Context(SEGMENTS, places))
        back = encoder.stack.back(x_BLE[:, ::-1], Context(SEGMENTS[:, ::-1], places))[:, ::-1]
        if norm == 'pre':
            ahead, back = encoder.norm.ahead(ahead), encoder.norm.back(back)
        states_NBLD = encoder.with_hidden_states(TOKENS, SEGMENTS)[1].states_NBLD
        return encoder(TOKENS, SEGMENTS), ahead, back, states_NBLD

    found, ahead, back, states_NBLD = map(np.asarray, run(encoder_of(norm=norm)))
    assert_close(found, np.concatenate([ahead, back], axis=-1))
    assert states_NBLD.shape == (3, 3, 7, 12)
    assert_close(states_NBLD[-1], found)


@pytest.mark.parametrize('feed_forward', [True, False])
def test_no_direction_reads_the_other(feed_forward: bool):
    """In all layers, the gradient from a position to tokens on its unread side is exactly zero."""

    @nnx.jit
    def jacobian(encoder: Encoder) -> jax.Array:
        x_BLD, context = encoder.embedded(TOKENS[:1], SEGMENTS[:1])

        def states(x_BLD: jax.Array) -> jax.Array:
            return encoder.norm(encoder.stack.with_layer_activations(x_BLD, context)[1].outputs_NBLD)[:, 0]

        return jax.jacobian(states)(x_BLD)

    encoder = encoder_of(feed_forward=feed_forward)
    # The axes are layer, position, unit, position read, unit read.
    slopes = np.abs(np.asarray(jacobian(encoder))[:, :, :, 0])
    ahead, back = slopes[:, :, :6].max(axis=(0, 2)), slopes[:, :, 6:].max(axis=(0, 2))
    assert not ahead[:, :, 6:].any() and not back[:, :, :6].any()  # No direction reads the half of the other one.
    ahead, back = ahead.max(axis=-1), back.max(axis=-1)
    later = np.triu(np.ones((7, 7), bool), 1)
    assert not ahead[later].any() and (ahead[~later] > 0).all()
    assert not back[later.T].any() and (back[~later.T] > 0).all()


def test_packed_texts_and_padding_change_nothing():
    places = [(1, slice(0, 3)), (1, slice(3, 6)), (2, slice(1, 4))]
    texts = np.stack([TOKENS[place] for place in places])
    both = nnx.jit(lambda encoder: (encoder(TOKENS, SEGMENTS), encoder(texts, np.ones_like(texts))))
    packed, alone = map(np.asarray, both(encoder_of()))
    for number, place in enumerate(places):
        assert_close(packed[place], alone[number])


def test_each_half_is_normed_by_itself():
    norms = nnx.merge(*drawn(lambda: DirectionNorms(CONFIG, rngs=nnx.Rngs(0))))
    x = np.random.default_rng(1).normal(size=(2, 12)).astype(np.float32)
    found, *halves = nnx.jit(lambda norms, x: (norms(x), norms.ahead(x[:, :6]), norms.back(x[:, 6:])))(norms, x)
    assert_close(found, np.concatenate(halves, axis=-1))
    assert isinstance(encoder_of(directions_apart=False).stack, Stack)
