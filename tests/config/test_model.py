"""The model's fields: derived values, and one clear line for each that is out of range."""

import dataclasses

import pytest

from efficient_attention.config.attention import AttentionConfig
from efficient_attention.config.compression import CompressionConfig
from efficient_attention.config.embedding import EmbeddingConfig
from efficient_attention.config.feed_forward import FeedForwardConfig
from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.low_rank import LowRankConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.output import OutputConfig
from efficient_attention.config.quantization import QuantizationConfig
from efficient_attention.config.recurrent import RecurrentConfig
from efficient_attention.config.relative import RelativeConfig
from efficient_attention.config.score import ScoreConfig
from efficient_attention.config.source_reading import SourceReadingConfig
from efficient_attention.config.uneven import UnevenConfig
from efficient_attention.errors import InputError

GROUPS = (AttentionConfig, RelativeConfig, ScoreConfig, FeedForwardConfig, RecurrentConfig, SourceReadingConfig)
GROUPS += (CompressionConfig, LayerConfig, EmbeddingConfig, OutputConfig, UnevenConfig, QuantizationConfig)
GROUPS += (LowRankConfig, ModelConfig)


def test_a_group_is_small_enough_to_read_at_once():
    sizes = [len(dataclasses.fields(group)) for group in GROUPS]
    own = [size - before for size, before in zip(sizes, [0, *sizes], strict=False)]
    assert sum(own) == len(dataclasses.fields(ModelConfig)) and max(own) <= 12


def test_the_layers_own_fields_are_derived_too():
    config = ModelConfig(width=48, heads=4)
    assert (config.head_width, config.feed_forward_width) == (12, 192)


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
        ({'layers': 0}, 'model.layers is 0'),
        ({'scan_unroll': 0}, 'model.scan_unroll is 0'),
        ({'sharing': 'half'}, "model.sharing is 'half'; known: none, all"),
        ({'remat': 'some'}, "model.remat is 'some'; known: none, full, dots"),
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
