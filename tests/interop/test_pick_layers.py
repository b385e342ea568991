"""Tests that a checkpoint reduced to some of its layers keeps their parameters."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.encoder_adaptation import pick_layers
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.encoder import Encoder

MODEL = ModelConfig(width=16, heads=2, layers=4, vocab_size=20, max_length=8)


def pretrained(**fields: Any) -> Pretrained:
    model = dataclasses.replace(MODEL, **fields)

    def params() -> dict[str, Any]:
        state = nnx.to_pure_dict(nnx.state(Encoder(model, rngs=nnx.Rngs(0))))
        return {'encoder': jax.tree.map(np.asarray, state), 'head': {'bias': np.ones(2)}}

    return Pretrained(model, HeadConfig(), (), 'none', '', None, True, params)


def test_picked_layers_are_those_of_the_checkpoint_and_all_else_stays():
    whole = pretrained()
    picked = pick_layers(whole, '4,2')
    assert picked.model == dataclasses.replace(MODEL, layers=2)
    before, after = whole.params(), picked.params()
    layers = before['encoder']['stack'].pop('layers')
    expected = jax.tree.map(lambda array: array[[3, 1]], layers)
    jax.tree.map(np.testing.assert_array_equal, after['encoder']['stack'].pop('layers'), expected)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    Encoder(picked.model, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    'fields, layers, message',
    [
        ({}, '1,5', 'it must be numbers from 1 to 4 with commas'),
        ({'sharing': 'all'}, '1', "model.sharing 'all' has no separate layers"),
        ({'attention': 'window(4);full'}, '1', r"with model.attention 'window\(4\);full' layers are not alike"),
    ],
)
def test_what_has_no_such_layers_is_refused(fields: dict[str, Any], layers: str, message: str):
    with pytest.raises(InputError, match=message):
        pick_layers(pretrained(**fields), layers)
