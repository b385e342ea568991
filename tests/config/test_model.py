"""The model's fields: derived values, and one clear line for each that is out of range."""

import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError


def test_the_embedding_is_as_wide_as_the_model_unless_it_is_factorised():
    assert ModelConfig(width=48, heads=4).embedding_width == 48
    assert ModelConfig(width=48, heads=4, embedding_width=16).embedding_width == 16


def test_the_layers_own_fields_are_derived_too():
    config = ModelConfig(width=48, heads=4)
    assert (config.head_width, config.feed_forward_width) == (12, 192)


AXIAL = {'positions': 'axial', 'axial_shape': (4, 4), 'axial_widths': (64, 64)}


@pytest.mark.parametrize(
    'fields, limit',
    [({}, 512), ({'positions': 'sinusoidal'}, None), (AXIAL, 16), ({'positions': 'none', 'relative': 'alibi'}, None)],
)
def test_how_many_positions_there_are(fields: dict, limit: int | None):
    assert ModelConfig(**fields).position_limit == limit
    assert ModelConfig(positions='none', relative='tupe', max_length=7).position_limit == 7
    assert ModelConfig(max_length=9, position_offset=2).position_limit == 7


@pytest.mark.parametrize(
    'fields, numbers',
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({'sharing': 'all'}, (0,) * 6),
        ({'sharing': 'all', 'layer_groups': 2}, (0, 0, 0, 1, 1, 1)),
        ({'sharing': 'all', 'layer_groups': 4}, (0, 0, 1, 2, 2, 3)),  # 6 rounds do not divide by 4
        ({'sharing': 'all', 'inner_layers': 3}, (0, 1, 2, 0, 1, 2)),
        ({'sharing': 'all', 'inner_layers': 2, 'layer_groups': 3}, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_which_layers_share_parameters(fields: dict, numbers: tuple[int, ...]):
    assert ModelConfig(layers=6, **fields).layer_numbers == numbers


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'vocab_size': 0}, 'model.vocab_size is 0; it must be at least 1'),
        ({'max_length': 0}, 'model.max_length is 0'),
        ({'layers': 0}, 'model.layers is 0'),
        ({'scan_unroll': 0}, 'model.scan_unroll is 0'),
        ({'embedding_width': -1}, 'model.embedding_width is -1'),
        ({'token_types': -1}, 'model.token_types is -1; it must be 0 or more'),
        ({'positions': 'sinusoidal', 'embedding_width': 5}, 'model.embedding_width is 5; it must be even'),
        ({'positions': 'rotary'}, "model.positions is 'rotary'; known: learned, sinusoidal, axial, none"),
        ({'relative': 'tupe'}, "model.positions is 'learned'; it must be 'none' with model.relative 'tupe'"),
        ({'axial_shape': (4, 4)}, r"model.axial_shape is \(4, 4\); it must be \(\) without model.positions 'axial'"),
        ({'axial_sum': True}, "model.axial_sum is True; it must be False without model.positions 'axial'"),
        ({'positions': 'axial'}, r'model.axial_shape is \(\); it must be one or more sizes of at least 1'),
        (AXIAL | {'axial_shape': (4, 0)}, r'model.axial_shape is \(4, 0\); it must be one or more sizes of at least 1'),
        (
            AXIAL | {'axial_widths': (64, 65)},
            r'model.axial_widths is \(64, 65\); it must be 2 widths .* sum is 128, the',
        ),
        (AXIAL | {'axial_widths': (128,)}, r'model.axial_widths is \(128,\); it must be 2 widths of at least 1'),
        (AXIAL | {'axial_sum': True}, r'model.axial_widths is \(64, 64\); it must be \(\) with model.axial_sum'),
        ({'sharing': 'half'}, "model.sharing is 'half'; known: none, all"),
        ({'remat': 'some'}, "model.remat is 'some'; known: none, full, dots"),
        ({'heads': 0}, 'model.heads is 0'),
        ({'loss_chunk': -1}, 'model.loss_chunk is -1; it must be 0 or more'),
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
        ({'position_offset': -1}, 'model.position_offset is -1; it must be 0 or more'),
        ({'position_offset': 512}, 'model.position_offset is 512; .* below model.max_length 512'),
        (
            {'position_offset': 2, 'positions': 'none', 'rotary': True},
            "is 2; it must be 0 without model.positions 'lea",
        ),
        ({'layer_groups': 2}, "model.layer_groups is 2; it must be 1 without model.sharing 'all'"),
        ({'inner_layers': 2}, "model.inner_layers is 2; it must be 1 without model.sharing 'all'"),
        ({'sharing': 'all', 'layer_groups': 0}, 'model.layer_groups is 0; it must be at least 1'),
        ({'sharing': 'all', 'layer_groups': 3}, 'model.layer_groups is 3; it must be at most 2, the rounds'),
        ({'sharing': 'all', 'layers': 4, 'inner_layers': 3}, 'model.inner_layers is 3; it must be a divisor of'),
        ({'stack': 'reverse'}, "model.stack is 'reverse'; known: plain, reversible"),
        ({'stack': 'reversible'}, "model.norm is 'post'; it must be 'pre' in a reversible stack"),
        ({'stack': 'reversible', 'norm': 'pre', 'remat': 'full'}, "model.remat is 'full'; it must be 'none' in a rev"),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**fields)
