"""The feed-forward layer's fields: derived values, and one clear line for each that is out of range."""

import pytest

from efficient_attention.config.feed_forward import FeedForwardConfig
from efficient_attention.errors import InputError


def test_the_feed_forward_layer_is_four_times_as_wide():
    assert FeedForwardConfig(width=96, heads=4).feed_forward_width == 384


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'activation': 'gelu'}, "model.activation is 'gelu'; known: gelu_tanh, gelu_erf"),
        ({'feed_forward_chunk': -1}, 'model.feed_forward_chunk is -1'),
        ({'feed_forward_dropout_rate': 1.0}, 'model.feed_forward_dropout_rate is 1.0'),
        (
            {'feed_forward_chunk': 4, 'feed_forward_dropout_rate': 0.1},
            'model.feed_forward_chunk is 4; it must be 0 with model.feed_forward_dropout_rate',
        ),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        FeedForwardConfig(**fields)
