"""Layers with heads and units of their own: what their numbers must be, and what does not go with them."""

from typing import Any

import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.nested_dicts import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError

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
        ({'attention': 'linformer(4, 512)'}, 'it must be a mechanism that learns no arrays of its own'),
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
    assert ModelConfig(**SIZES).is_uneven and not ModelConfig().is_uneven


@pytest.mark.parametrize(
    'group, fields, message',
    [
        ('optimizer', {'layer_decay': 0.9}, 'optimizer.layer_decay is 0.9; it must be 1.0 where layers have heads'),
        ('optimizer', {'frozen_layers': 1}, 'optimizer.frozen_layers is 1; it must be 0 where layers have heads'),
        ('mesh', {'tensor': 2}, 'mesh.tensor is 2; it must be 1 where layers have heads'),
    ],
)
def test_rates_by_layer_and_a_split_of_heads_are_refused(group: str, fields: dict[str, Any], message: str):
    model = SIZES | {'layer_heads': [4, 0]}
    from_dict({'model': model}, RunConfig)
    with pytest.raises(InputError, match=message):
        from_dict({'model': model, group: fields}, RunConfig)
