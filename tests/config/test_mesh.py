"""Tests of the fields of the mesh, and that models which cannot be split over devices are refused."""

import pytest

from efficient_attention.config.mesh import MeshConfig, check_sequence_parallel
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


def test_all_devices_spread_rows_by_default():
    assert MeshConfig() == MeshConfig(data=0, fsdp=1, tensor=1)


@pytest.mark.parametrize('axis, least', [('data', 0), ('fsdp', 1), ('tensor', 1)])
def test_an_axis_without_a_device_is_refused(axis: str, least: int):
    with pytest.raises(InputError, match=f'mesh.{axis} is {least - 1}; it must be'):
        MeshConfig(**{axis: least - 1})


LENGTHS = {'data.length': 64, 'eval.context': 0}
LINES = [
    (
        {'attention': 'lsh(8, 1)', 'shared_qk': True},
        {},
        "'lsh(8, 1)' rules out sequence parallel: lsh needs whole rows",
    ),
    ({'attention': 'full;per_head(causal, full)'}, {'tensor': 2}, "'per_head(causal, full)' differs by head"),
    ({'attention_backend': 'cudnn'}, {}, "model.attention_backend 'cudnn' gives no log-sum-exp"),
    ({'attention_backend': 'splash'}, {}, "model.attention_backend 'splash' gives no log-sum-exp"),
    ({'relative': 'tupe', 'positions': 'none'}, {}, "model.relative 'tupe' needs the positions of whole rows"),
    (
        {'decoder_layers': 2, 'decoder_attention': 'lsh(8, 1, causal=True)', 'shared_qk': True},
        {},
        'model.decoder_attention',
    ),
    (
        {'decoder_layers': 2, 'cross_attention': 'window(8)'},
        {},
        "model.cross_attention 'window(8)' does not work with",
    ),
    ({'memory_length': 7}, {}, 'model.memory_length 7 is not a multiple of it'),
    (
        {'memory_length': 8, 'compression': 'mean', 'compressed_length': 7},
        {},
        'model.compressed_length 7 is not a multiple of it',
    ),
]


@pytest.mark.parametrize('model, mesh, line', LINES)
def test_what_cannot_be_split_is_refused(model: dict, mesh: dict, line: str):
    config = ModelConfig(**model)
    check_sequence_parallel(MeshConfig(**mesh), config, LENGTHS)
    with pytest.raises(InputError) as raised:
        check_sequence_parallel(MeshConfig(sequence=2, **mesh), config, LENGTHS)
    assert str(raised.value).startswith('mesh.sequence is 2; ') and line in str(raised.value)


@pytest.mark.parametrize('text', ['full', 'longformer(4, 2)', 'bigbird(4, 1)', 'sparse_fixed(8, 2)'])
def test_patterns_can_be_split(text: str):
    check_sequence_parallel(MeshConfig(sequence=4), ModelConfig(attention=text), LENGTHS)


def test_an_encoder_decoder_can_be_split():
    both = {'attention': 'longformer(4, 2)', 'decoder_attention': 'causal & window(8)', 'decoder_layers': 1}
    for cross in ('full', 'favor(8)', 'linear'):
        model = ModelConfig(**both, cross_attention=cross, attention_dropout_rate=0.0)
        check_sequence_parallel(MeshConfig(sequence=4), model, LENGTHS)


def test_a_run_checks_its_rows():
    with pytest.raises(InputError, match='mesh.sequence is 3; data.length 128 is not a multiple of it'):
        RunConfig(mesh=MeshConfig(sequence=3))
