"""The fields of a head, and one line for each that does not serve."""

import pytest

from efficient_attention.config.head import HeadConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'kind': 'pair'}, r"^head\.kind is 'pair'; known: none, sequence, "),
        ({'transform': 'sine'}, r"^head\.transform is 'sine'; known: none, tanh, gelu_tanh, "),
        ({'pooling': 'max'}, r"^head\.pooling is 'max'; known: first, mean, attention, multihead$"),
        ({'features': 'first'}, r"^head\.features is 'first'; known: last, mix$"),
        ({'sentence_layers': -1}, r'^head\.sentence_layers is -1; it must be from 0 to 1024$'),
        ({'outputs': 0}, r'^head\.outputs is 0; it must be at least 1$'),
        ({'dropout_rate': 1.0}, r'^head\.dropout_rate is 1\.0; it must be at least 0 and below 1$'),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        HeadConfig(**fields)
