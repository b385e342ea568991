"""Fields of compressed memory: one clear line for each that is out of range or that nothing reads."""

import pytest

from efficient_attention.config.compression import CompressionConfig
from efficient_attention.errors import InputError

LEARNED = {'compression': 'convolution', 'compressed_length': 8, 'reconstruction_weight': 1.0}


@pytest.mark.parametrize('fields', [{}, LEARNED, {'compression': 'max', 'compressed_length': 8, 'compression_rate': 1}])
def test_what_fits_is_taken(fields: dict):
    config = CompressionConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'compression': 'conv'}, "model.compression is 'conv'; known: none, convolution, mean, max"),
        ({'compressed_length': 8}, 'model.compressed_length is 8; it must be 0 without model.compression'),
        ({'compression_rate': 2}, 'model.compression_rate is 2; it must be 4 without model.compression'),
        (
            {'reconstruction_weight': 1.0},
            'model.reconstruction_weight is 1.0; it must be 0.0 without model.compression',
        ),
        (LEARNED | {'compressed_length': -1}, r'model.compressed_length is -1; it must be at least 0'),
        (LEARNED | {'compression_rate': 0}, r'model.compression_rate is 0; it must be at least 1'),
        (LEARNED | {'reconstruction_weight': float('nan')}, 'model.reconstruction_weight is nan'),
        (LEARNED | {'reconstruction_weight': 0.0}, "weight is 0.0; it must be above 0 with model.compression 'convol"),
        (LEARNED | {'compression': 'mean'}, "weight is 1.0; it must be 0 with model.compression 'mean', which has no"),
    ],
)
def test_what_does_not_fit_is_one_line(fields: dict, message: str):
    with pytest.raises(InputError, match=message) as caught:
        CompressionConfig(**fields)
    assert '\n' not in str(caught.value)
