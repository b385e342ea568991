"""Fields of recurrent sub-layers out of their range."""

import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.recurrent import RecurrentConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'cell': 'elman'}, "cell is 'elman'; known: none, tanh, gru, lstm, sru1, sru2"),
        ({'cell': 'gru', 'state_dropout_rate': 1.0}, r'state_dropout_rate is 1.0; it must be at least 0 and below 1'),
        ({'cell': 'sru2', 'state_dropout_rate': 0.1}, 'state_dropout_rate is 0.1; it must be 0 with model.cell'),
        ({'cell': 'gru', 'recurrent_chunk': -1}, 'recurrent_chunk is -1'),
        ({'cell': 'gru', 'bidirectional': True, 'width': 9, 'heads': 3}, 'width is 9; it must be even for model.bidir'),
        ({'bidirectional': True}, 'bidirectional is True; it must be False without model.cell'),
        ({'recurrent_chunk': 8}, 'recurrent_chunk is 8; it must be 0 without model.cell'),
        ({'feed_forward': False, 'feed_forward_width': 8}, 'feed_forward_width is 8; it must be 512 with model.feed_f'),
        ({'feed_forward': False, 'feed_forward_gate': True}, 'feed_forward_gate is True; it must be False with model.'),
    ],
)
def test_fields_out_of_range_are_named(fields: dict, said: str):
    with pytest.raises(InputError, match=f'^model.{said}'):
        RecurrentConfig(**fields)


def test_both_directions_share_the_width_and_a_decoder_has_one():
    model = ModelConfig(cell='lstm', bidirectional=True, decoder_layers=2, token_types=0)
    assert (model.units, model.encoder.units, model.decoder.units) == (64, 64, 128)
