"""Tests of layers with different sizes, padded to layers of equal size and back."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.padded_layers import pad_layers, padded_config, unpad_layers
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.sharding import path_name
from tests.models.test_uneven_stack import SEGMENTS, TOKENS, UNEVEN
from tests.tolerances import assert_close


def encoder_of(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the graph of an encoder and the shapes of its parameters."""
    return nnx.split(nnx.eval_shape(lambda: Encoder(config, rngs=nnx.Rngs(0))))


def params_of(config: ModelConfig) -> dict:
    """Returns random parameters of an encoder: norm scales around 1, all others around 0."""
    rng = np.random.default_rng(0)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return rng.normal(float(path_name(path).endswith('scale')), 0.2, leaf.shape).astype(np.float32)

    return {'encoder': jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(encoder_of(config)[1]))}


def test_the_padded_model_computes_the_same():
    params = params_of(UNEVEN)
    whole = pad_layers(UNEVEN, params)
    shapes = nnx.to_pure_dict(encoder_of(padded_config(UNEVEN))[1])
    assert jax.tree.map(np.shape, whole) == {'encoder': jax.tree.map(lambda leaf: leaf.shape, shapes)}
    found = []
    for config, one in ((UNEVEN, params), (padded_config(UNEVEN), whole)):
        encoder = nnx.merge(encoder_of(config)[0], one['encoder'])
        found.append(nnx.jit(lambda encoder: encoder(TOKENS, SEGMENTS))(encoder))
    assert_close(found[0], found[1])
    jax.tree.map(np.testing.assert_array_equal, unpad_layers(UNEVEN, whole), params)


def test_models_of_one_size_are_as_they_were():
    params = {'encoder': 1}
    assert pad_layers(padded_config(UNEVEN), params) == params and unpad_layers(padded_config(UNEVEN), params) == params


def test_numbers_that_would_be_lost_are_one_line():
    whole = pad_layers(UNEVEN, params_of(UNEVEN))
    whole['encoder']['stack']['layers']['feed_forward']['down']['kernel'][3, 5] = 1.0
    with pytest.raises(InputError, match='feed_forward/down/kernel has numbers in heads or units that are removed'):
        unpad_layers(UNEVEN, whole)
    without = dataclasses.replace(UNEVEN, attention_bias=False)
    with pytest.raises(InputError, match='keeps only a bias of its attention'):
        pad_layers(without, params_of(without))
