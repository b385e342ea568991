"""The fields of rounded products."""

from typing import Any

import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'quantization': 'int4'}, "model.quantization is 'int4'; known: none, int8, int8_weights"),
        (
            {'float_layers': ('down',)},
            r"model.float_layers is \('down',\); it must be empty without model.quantization",
        ),
        (
            {'quantization': 'int8', 'float_layers': ('(',)},
            r"model.float_layers has '\(', which is no regular expression",
        ),
        (
            {'quantization': 'int8', 'cell': 'gru', 'heads': 2, 'attention_dropout_rate': 0.1},
            "model.cell is 'gru'; it must be 'none' with model.quantization",
        ),
    ],
)
def test_what_does_not_serve_is_one_line(fields: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**fields)
