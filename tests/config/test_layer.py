"""The layer's fields: derived values, and one clear line for each that is out of range."""

import pytest

from efficient_attention.config.layer import LayerConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'dropout_rate': 1.0}, r'model.dropout_rate is 1.0; it must be in \[0, 1\)'),
        ({'norm': 'sandwich'}, "model.norm is 'sandwich'; known: post, pre"),
        ({'dtype': 'float16'}, "model.dtype is 'float16'; known"),
        ({'norm_kind': 'batch'}, "model.norm_kind is 'batch'; known: layer, rms"),
        ({'kernel_init': 'zeros'}, "model.kernel_init is 'zeros'; known: fixed, fan_in"),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        LayerConfig(**fields)
