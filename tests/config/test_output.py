"""The fields of a decoder's output: one clear line for each that is out of range."""

import pytest

from efficient_attention.config.output import OutputConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'loss_chunk': -1}, 'model.loss_chunk is -1; it must be 0 or more'),
        ({'target_vocab_size': -1}, 'model.target_vocab_size is -1; it must be 0 or more'),
        ({'target_vocab_size': 9}, 'model.shared_table is True; it must be False with model.target_vocab_size 9'),
        (
            {'target_vocab_size': 9, 'shared_table': False, 'adaptive_cutoffs': (9,)},
            r'model.adaptive_cutoffs is \(9,\); it must be \(\) with model.target_vocab_size 9',
        ),
        ({'adaptive_cutoffs': (9, 9)}, r'model.adaptive_cutoffs is \(9, 9\); it must be rising ids above 0 and below'),
        ({'adaptive_cutoffs': (0, 9)}, r'model.adaptive_cutoffs is \(0, 9\)'),
        ({'adaptive_cutoffs': (9,), 'vocab_size': 9}, r'\(9,\); it must be rising ids .* below model.vocab_size 9'),
        ({'adaptive_divisor': 2}, 'model.adaptive_divisor is 2; it must be 1 without model.adaptive_cutoffs'),
        ({'adaptive_cutoffs': (9,), 'adaptive_divisor': 0}, 'model.adaptive_divisor is 0; it must be 1 to 128'),
        ({'adaptive_cutoffs': (9, 99), 'adaptive_divisor': 12}, 'is 12; it must be 1 to 128 in its power 2'),
        (
            {'output_bias': True, 'tied_output': False},
            'model.output_bias is True; it must be False with a dense output',
        ),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        OutputConfig(**fields)
