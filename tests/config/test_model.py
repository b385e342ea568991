"""Tests of the fields of a model: derived values, and one clear line for each unsuitable value."""

from typing import Any

import pytest

from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


def test_the_layers_own_fields_are_derived_too():
    config = ModelConfig(width=48, heads=4)
    assert (config.head_width, config.feed_forward_width) == (12, 192)


@pytest.mark.parametrize(
    'fields, numbers',
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({'sharing': 'all'}, (0,) * 6),
        ({'sharing': 'all', 'layer_groups': 2}, (0, 0, 0, 1, 1, 1)),
        ({'sharing': 'all', 'layer_groups': 4}, (0, 0, 1, 2, 2, 3)),  # 6 layers do not divide into 4 equal groups
        ({'sharing': 'all', 'inner_layers': 3}, (0, 1, 2, 0, 1, 2)),
        ({'sharing': 'all', 'inner_layers': 2, 'layer_groups': 3}, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_which_layers_share_parameters(fields: dict, numbers: tuple[int, ...]):
    assert ModelConfig(layers=6, **fields).layer_to_param_index == numbers


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'layers': 0}, 'model.layers is 0'),
        ({'scan_unroll': 0}, 'model.scan_unroll is 0'),
        ({'sharing': 'half'}, "model.sharing is 'half'; known: none, all"),
        ({'remat': 'some'}, "model.remat is 'some'; known: none, dots, full, auto"),
        ({'heads': 0}, 'model.heads is 0'),
        ({'layer_groups': 2}, "model.layer_groups is 2; it must be 1 without model.sharing 'all'"),
        ({'inner_layers': 2}, "model.inner_layers is 2; it must be 1 without model.sharing 'all'"),
        ({'sharing': 'all', 'layer_groups': 0}, 'model.layer_groups is 0; it must be at least 1'),
        ({'sharing': 'all', 'layer_groups': 3}, 'model.layer_groups is 3; it must be at most 2, the rounds'),
        ({'sharing': 'all', 'layers': 4, 'inner_layers': 3}, 'model.inner_layers is 3; it must be a divisor of'),
        ({'stack': 'reverse'}, "model.stack is 'reverse'; known: plain, reversible"),
        ({'stack': 'reversible'}, "model.norm is 'post'; it must be 'pre' in a reversible stack"),
        ({'stack': 'reversible', 'norm': 'pre', 'residual': False}, 'model.residual is False; it must be True in a re'),
        ({'stack': 'reversible', 'norm': 'pre', 'remat': 'full'}, "model.remat is 'full'; it must be 'none' in a rev"),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**fields)


AXIAL = {'positions': 'axial', 'axial_shape': (4, 4), 'axial_widths': (64, 64)}


def test_the_embedding_is_as_wide_as_the_model_unless_it_is_factorised():
    assert ModelConfig(width=48, heads=4).embedding_width == 48
    assert ModelConfig(width=48, heads=4, embedding_width=16).embedding_width == 16


@pytest.mark.parametrize(
    'fields, limit',
    [({}, 512), ({'positions': 'sinusoidal'}, None), (AXIAL, 16), ({'positions': 'none', 'relative': 'alibi'}, None)],
)
def test_how_many_positions_there_are(fields: dict, limit: int | None):
    assert ModelConfig(**fields).position_limit == limit
    assert ModelConfig(positions='none', relative='tupe', max_length=7).position_limit == 7
    assert ModelConfig(max_length=9, position_offset=2).position_limit == 7


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'vocab_size': 0}, 'model.vocab_size is 0; it must be at least 1'),
        ({'max_length': 0}, 'model.max_length is 0'),
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
        ({'position_offset': -1}, 'model.position_offset is -1; it must be 0 or more'),
        ({'position_offset': 512}, 'model.position_offset is 512; .* below model.max_length 512'),
        (
            {'position_offset': 2, 'positions': 'none', 'rotary': True},
            "is 2; it must be 0 without model.positions 'lea",
        ),
    ],
)
def test_bad_fields_of_embedding_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**fields)


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
def test_bad_fields_of_output_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**fields)


SIZES: dict[str, Any] = {'layers': 2, 'width': 8, 'heads': 4, 'feed_forward_width': 12, 'layer_heads': (4, 0)}


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'layer_heads': (4,)}, r'model.layer_heads is \(4,\); it must be 2 numbers from 0 to 4, one for each layer'),
        ({'layer_heads': (4, 5)}, r'model.layer_heads is \(4, 5\); it must be 2 numbers from 0 to 4'),
        ({'layer_units': (13, 0)}, r'model.layer_units is \(13, 0\); it must be 2 numbers from 0 to 12'),
        (
            {'stack': 'reversible', 'norm': 'pre'},
            "model.stack is 'reversible'; it must be 'plain' with model.layer_heads",
        ),
        ({'relative': 't5'}, "model.relative is 't5'; it must be 'none' with model.layer_heads"),
        ({'attention': 'linformer(4, 512)'}, 'it must be a mechanism without learned arrays'),
        ({'attention': 'full; window(2)'}, 'it must be one mechanism with model.layer_heads'),
        (
            {'attention': 'bigbird(2, 1)'},
            'it must be a mechanism that is the same for every head, whatever their number',
        ),
        ({'attention': 'lsh(4, 2)', 'shared_qk': True, 'attention_dropout_rate': 0.0}, 'the same for every head'),
        ({'sharing': 'all'}, r'model.layer_heads is \(4, 0\); it must be 1 numbers from 0 to 4'),
        (
            {'sharing': 'all', 'inner_layers': 2, 'layer_heads': (4,)},
            'model.layer_groups x inner_layers is 2; it must be 1 with model.layer_heads',
        ),
        ({'feed_forward': False, 'feed_forward_width': 0, 'layer_units': (1, 1)}, 'empty without model.feed_forward'),
    ],
)
def test_what_does_not_fit_is_one_line(fields: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**SIZES | fields)
    assert ModelConfig(**SIZES).has_layer_specific_sizes and not ModelConfig().has_layer_specific_sizes


@pytest.mark.parametrize(
    'group, fields, message',
    [
        (
            'optimizer',
            {'layer_decay': 0.9},
            'optimizer.layer_decay is 0.9; it must be 1.0 where layers differ in heads',
        ),
        ('optimizer', {'frozen_layers': 1}, 'optimizer.frozen_layers is 1; it must be 0 where layers differ in heads'),
        ('mesh', {'tensor': 2}, 'mesh.tensor is 2; it must be 1 where layers differ in heads'),
    ],
)
def test_rates_by_layer_and_a_split_of_heads_are_refused(group: str, fields: dict[str, Any], message: str):
    model = SIZES | {'layer_heads': [4, 0]}
    from_dict({'model': model}, RunConfig)
    with pytest.raises(InputError, match=message):
        from_dict({'model': model, group: fields}, RunConfig)


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


SIZES_OF_LOW_RANK: dict[str, Any] = {'width': 8, 'heads': 2, 'feed_forward_width': 32, 'vocab_size': 50}


@pytest.mark.parametrize(
    'fields, message',
    [
        (
            {'ranks': ('up',)},
            "model.ranks has 'up'; entries are as 'up=96', of query, key, value, out, gate, up, down, token",
        ),
        ({'ranks': ('head=3',)}, "model.ranks has 'head=3'; entries are as"),
        ({'ranks': ('up=9',)}, r"model.ranks is \('up=9',\); it must be at most 8 of up, its smaller side"),
        ({'ranks': ('gate=2',)}, "it must be no 'gate', which the layers lack"),
        ({'ranks': ('down=2',), 'feed_forward': False}, "it must be no 'down', which the layers lack"),
        ({'ranks': ('up=2', 'up=3')}, 'it must be one entry per kind'),
        ({'ranks': ('up=2',), 'global_tokens': 1}, 'model.global_tokens is 1; it must be 0 with model.ranks'),
    ],
)
def test_ranks_that_do_not_serve_are_named(fields: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**SIZES_OF_LOW_RANK | fields)


def test_a_matrix_whose_factors_save_nothing_stays_whole():
    model = ModelConfig(**SIZES_OF_LOW_RANK, ranks=('up=6', 'query=4', 'token=3'))
    assert model.kernel_rank('up', 8, 32) == 6 and model.kernel_rank('up', 8, 12) == 0
    assert (
        model.kernel_rank('query', 8, 8) == 0
        and model.kernel_rank('token', 50, 8) == 3
        and model.kernel_rank('key', 8, 8) == 0
    )


def test_factors_are_not_pruned():
    values = {'model': SIZES_OF_LOW_RANK | {'ranks': ['up=6']}, 'prune': {'method': 'magnitude'}}
    with pytest.raises(InputError, match="model.ranks is .*; it must be empty with prune.method 'magnitude'"):
        from_dict(values, RunConfig)
