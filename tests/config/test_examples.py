"""Tests that each unsuitable field of the config group `examples` (fine-tuning data) is refused in one line."""

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'problem': 'translation'}, r"^examples\.problem is 'translation'; known: none, classification, "),
        ({'format': 'xml'}, r"^examples\.format is 'xml'; known: table, glue, "),
        ({'overlong': 'drop'}, r"^examples\.overlong is 'drop'; known: truncate, error, skip, windows$"),
        ({'stride': 0}, r'^examples\.stride is 0; it must be at least 1$'),
        ({'epochs': 0.0}, r'^examples\.epochs is 0\.0; it must be above 0$'),
        ({'warmup_share': 1.5}, r'^examples\.warmup_share is 1\.5; it must be from 0 to 1$'),
        ({'buckets': (32, 16)}, r'^examples\.buckets is \(32, 16\); it must be rising lengths of at least 1$'),
        ({'labels': ('yes', 'no', 'yes')}, r"^examples\.labels is \('yes', 'no', 'yes'\); a label occurs twice$"),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        ExamplesConfig(**fields)
