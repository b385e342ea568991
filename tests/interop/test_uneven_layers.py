"""Layers of their own sizes as layers of one size, and back."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.uneven_layers import even, padded, unpadded
from efficient_attention.models.encoder import Encoder
from tests.models.test_uneven import SEGMENTS, TOKENS, UNEVEN
from tests.tolerances import assert_close


def params_of(config: ModelConfig) -> dict:
    rng = np.random.default_rng(0)
    params = {'encoder': nnx.to_pure_dict(nnx.state(Encoder(config, rngs=nnx.Rngs(0))))}
    return jax.tree.map(lambda leaf: np.asarray(leaf + 0.1 * rng.normal(size=leaf.shape), np.float32), params)


def test_the_padded_model_computes_the_same():
    params = params_of(UNEVEN)
    whole = padded(UNEVEN, params)
    shapes = jax.tree.map(np.shape, params_of(even(UNEVEN)))
    assert jax.tree.map(np.shape, whole) == shapes
    found = []
    for config, one in ((UNEVEN, params), (even(UNEVEN), whole)):
        graph, _ = nnx.split(nnx.eval_shape(lambda config=config: Encoder(config, rngs=nnx.Rngs(0))))
        found.append(nnx.merge(graph, one['encoder'])(TOKENS, SEGMENTS))
    assert_close(found[0], found[1])
    jax.tree.map(np.testing.assert_array_equal, unpadded(UNEVEN, whole), params)


def test_models_of_one_size_are_as_they_were():
    params = {'encoder': 1}
    assert padded(even(UNEVEN), params) == params and unpadded(even(UNEVEN), params) == params


def test_numbers_that_would_be_lost_are_one_line():
    whole = padded(UNEVEN, params_of(UNEVEN))
    whole['encoder']['stack']['layers']['feed_forward']['down']['kernel'][3, 5] = 1.0
    with pytest.raises(InputError, match='feed_forward/down/kernel has numbers in heads or units that are removed'):
        unpadded(UNEVEN, whole)
    without = dataclasses.replace(UNEVEN, attention_bias=False)
    with pytest.raises(InputError, match='a bias is left in its attention has no place for it'):
        padded(without, params_of(without))
