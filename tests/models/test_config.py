"""The model's fields: derived values, and one clear line for each that is out of range."""

import pytest

from efficient_attention.errors import InputError
from efficient_attention.models.config import ModelConfig


def test_the_embedding_is_as_wide_as_the_model_unless_it_is_factorised():
    assert ModelConfig(width=48, heads=4).embedding_width == 48
    assert ModelConfig(width=48, heads=4, embedding_width=16).embedding_width == 16


def test_the_layers_own_fields_are_derived_too():
    config = ModelConfig(width=48, heads=4)
    assert (config.head_width, config.feed_forward_width) == (12, 192)


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
        ({'positions': 'rotary'}, "model.positions is 'rotary'; known: learned, sinusoidal, none"),
        ({'sharing': 'half'}, "model.sharing is 'half'; known: none, all"),
        ({'remat': 'some'}, "model.remat is 'some'; known: none, full, dots"),
        ({'heads': 0}, 'model.heads is 0'),
        ({'loss_chunk': -1}, 'model.loss_chunk is -1; it must be 0 or more'),
        ({'stack': 'reverse'}, "model.stack is 'reverse'; known: plain, reversible"),
        ({'stack': 'reversible'}, "model.norm is 'post'; it must be 'pre' in a reversible stack"),
        ({'stack': 'reversible', 'norm': 'pre', 'remat': 'full'}, "model.remat is 'full'; it must be 'none' in a rev"),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**fields)
