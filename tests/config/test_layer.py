"""The layer's fields: derived values, and one clear line for each that is out of range."""

import pytest

from efficient_attention.config.layer import LayerConfig
from efficient_attention.errors import InputError


def test_the_feed_forward_layer_is_four_times_as_wide():
    assert LayerConfig(width=96, heads=4).feed_forward_width == 384


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'dropout_rate': 1.0}, r'model.dropout_rate is 1.0; it must be in \[0, 1\)'),
        ({'activation': 'gelu'}, "model.activation is 'gelu'; known: gelu_tanh, gelu_erf"),
        ({'norm': 'sandwich'}, "model.norm is 'sandwich'; known: post, pre"),
        ({'dtype': 'float16'}, "model.dtype is 'float16'; known"),
        ({'feed_forward_chunk': -1}, 'model.feed_forward_chunk is -1'),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        LayerConfig(**fields)
