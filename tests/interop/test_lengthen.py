"""Tests of more positions and other attention: short rows give unchanged outputs, and position tables repeat."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.errors import InputError
from efficient_attention.interop.encoder_adaptation import extend_positions, tile_position_table
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.models.encoder import Encoder
from tests.interop.folders import FIXTURES, TEXT_TO_TEXT
from tests.tolerances import assert_close


def encoder_of(pretrained: Pretrained) -> Encoder:
    graph, _ = nnx.split(nnx.eval_shape(lambda: Encoder(pretrained.model, rngs=nnx.Rngs(0))))
    return nnx.merge(graph, pretrained.params()['encoder'])


@nnx.jit
def run(encoder: Encoder, tokens_BL: jax.Array, is_global_BL: jax.Array | None = None) -> jax.Array:
    return encoder(tokens_BL, jnp.ones_like(tokens_BL), is_global_BL=is_global_BL)


@pytest.mark.parametrize('name', ['bert_1', 'roberta_1'])
def test_short_rows_in_a_wide_window_are_as_before(name: str):
    before = open_pretrained(FIXTURES / name)
    after = extend_positions(before, length=100, attention='window(11) | global_tokens(1)', global_tokens=2)
    assert (after.model.position_limit, after.model.global_tokens) == (100, 2)
    tokens_BL = jnp.asarray(np.random.default_rng(0).integers(5, 61, (2, 12)))
    expected = run(encoder_of(before), tokens_BL)
    encoder = encoder_of(after)
    assert_close(run(encoder, tokens_BL), expected)
    if name != 'bert_1':
        return
    is_global_BL = jnp.zeros(tokens_BL.shape, bool).at[:, 3].set(True)
    # Global projections start as copies of the ordinary ones.
    assert_close(run(encoder, tokens_BL, is_global_BL), expected)


def test_long_rows_are_read_and_far_tokens_change_nothing_outside_the_window():
    encoder = encoder_of(extend_positions(open_pretrained(FIXTURES / 'bert_1'), length=60, attention='window(4)'))
    tokens_BL = jnp.asarray(np.random.default_rng(0).integers(5, 61, (1, 60)))
    first, second = run(encoder, tokens_BL), run(encoder, tokens_BL.at[0, 50].set(7))
    # Two layers of windows reach 4 positions each, so 8 before 50.
    np.testing.assert_array_equal(first[:, :42], second[:, :42])
    assert not np.array_equal(first[:, 42:], second[:, 42:]) and np.isfinite(first).all()


@pytest.mark.parametrize('offset', [0, 2])
def test_copies_come_one_after_another_behind_the_unread_rows(offset: int):
    table_LE = np.arange(10.0).reshape(5, 2)
    longer_LE = tile_position_table(table_LE, offset, 13)
    assert longer_LE.shape == (13, 2)
    np.testing.assert_array_equal(longer_LE[:5], table_LE)
    np.testing.assert_array_equal(longer_LE[5:], longer_LE[offset : offset + 8])


def test_global_projections_can_be_taken_away():
    pretrained = extend_positions(open_pretrained(FIXTURES / 'longformer_1'), global_tokens=0)
    assert 'global_projections' not in pretrained.params()['encoder']['stack']['layers']['attention']
    encoder_of(pretrained)  # Building the module checks the parameter names.


def test_what_cannot_be_lengthened_is_named():
    pretrained = open_pretrained(FIXTURES / 'bert_1')
    with pytest.raises(InputError, match='24 positions; the model has 24 already'):
        extend_positions(pretrained, length=24)
    with pytest.raises(InputError, match="unknown name 'windw'"):
        extend_positions(pretrained, attention='windw(2)')
    model = dataclasses.replace(pretrained.model, positions='sinusoidal')
    with pytest.raises(InputError, match="model.positions is 'sinusoidal'; only a learned table"):
        extend_positions(dataclasses.replace(pretrained, model=model), length=99)


def test_an_encoder_decoder_gets_another_attention_and_no_more_positions():
    before = open_pretrained(TEXT_TO_TEXT / 't5_1')
    after = extend_positions(before, attention='window(2)')
    assert after.model.attention == 'window(2)' and after.params().keys() == {'encoder', 'decoder'}
    for options in ({'length': 99}, {'global_tokens': 2}):
        with pytest.raises(InputError, match='decoder_layers is 2; an encoder-decoder cannot be lengthened'):
            extend_positions(before, **options)
