"""Directions that are kept apart: each reads its own states alone, and both are joined."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.directions import DirectionNorms, direction_config
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.stack import Stack
from efficient_attention.modules.context import Context
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
TOKENS = jax.random.randint(jax.random.key(0), (3, 7), 1, 11)
SEGMENTS = jnp.asarray([[1] * 7, [1, 1, 1, 2, 2, 2, 0], [0, 1, 1, 1, 0, 0, 0]])


def encoder_of(**fields: object) -> Encoder:
    return Encoder(dataclasses.replace(CONFIG, **fields), rngs=nnx.Rngs(0))


def test_a_direction_is_half_as_wide():
    half = direction_config(dataclasses.replace(CONFIG, embedding_width=5, feed_forward_width=20))
    assert (half.width, half.embedding_width, half.units, half.feed_forward_width) == (6, 5, 6, 10)
    assert not half.bidirectional and direction_config(CONFIG).embedding_width == 6


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_it_is_two_stacks_one_of_which_reads_the_row_from_its_end(norm: str):
    encoder = encoder_of(norm=norm)
    x_BLE = encoder.embeddings(TOKENS, jnp.zeros_like(TOKENS), jnp.zeros_like(TOKENS))
    assert x_BLE.shape == (3, 7, 6)
    places = jnp.zeros_like(TOKENS)
    ahead = encoder.stack.ahead(x_BLE, Context(SEGMENTS, places))
    back = encoder.stack.back(x_BLE[:, ::-1], Context(SEGMENTS[:, ::-1], places))[:, ::-1]
    if norm == 'pre':
        ahead, back = encoder.norm.ahead(ahead), encoder.norm.back(back)
    assert_close(encoder(TOKENS, SEGMENTS), jnp.concatenate([ahead, back], axis=-1))
    _, inside = encoder.with_inside(TOKENS, SEGMENTS)
    assert inside.states_NBLD.shape == (3, 3, 7, 12)
    assert_close(inside.states_NBLD[-1], encoder(TOKENS, SEGMENTS))


@pytest.mark.parametrize('feed_forward', [True, False])
def test_no_direction_reads_the_other(feed_forward: bool):
    """Of all layers' states at a position: exactly zero gradients to what lies on the other side of it."""
    encoder = encoder_of(feed_forward=feed_forward)
    x_BLD, context = encoder.embedded(TOKENS[:1], SEGMENTS[:1])

    def states(x_BLD: jax.Array) -> jax.Array:
        return encoder.norm(encoder.stack.tapped(x_BLD, context)[1].outputs_NBLD)[:, 0]

    slopes = np.abs(np.asarray(jax.jacobian(states)(x_BLD))[:, :, :, 0])  # layer, at, of, from, from unit
    ahead, back = slopes[:, :, :6].max(axis=(0, 2)), slopes[:, :, 6:].max(axis=(0, 2))
    assert not ahead[:, :, 6:].any() and not back[:, :, :6].any()  # nor halves of another
    ahead, back = ahead.max(axis=-1), back.max(axis=-1)
    later = np.triu(np.ones((7, 7), bool), 1)
    assert not ahead[later].any() and (ahead[~later] > 0).all()
    assert not back[later.T].any() and (back[~later.T] > 0).all()


def test_packed_texts_and_padding_change_nothing():
    encoder = encoder_of()
    packed = encoder(TOKENS, SEGMENTS)
    for row, first, last in ((1, 0, 3), (1, 3, 6), (2, 1, 4)):
        alone = encoder(TOKENS[row : row + 1, first:last], jnp.ones((1, last - first), jnp.int32))
        assert_close(packed[row, first:last], alone[0])


def test_each_half_is_normed_by_itself():
    norms = DirectionNorms(CONFIG, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 12))
    assert_close(norms(x), jnp.concatenate([norms.ahead(x[:, :6]), norms.back(x[:, 6:])], axis=-1))
    assert isinstance(Encoder(dataclasses.replace(CONFIG, directions_apart=False), rngs=nnx.Rngs(0)).stack, Stack)
