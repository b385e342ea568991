"""Tests that a module gets all parameters of a checkpoint, or that one line names the missing ones."""

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import match_tree_structure, pretrained_module, row_length
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.pretraining import PretrainingModel

CONFIG = ModelConfig(width=8, heads=2, layers=1, vocab_size=11, max_length=6)


def pretrained(params: dict, model: ModelConfig = CONFIG) -> Pretrained:
    return Pretrained(model, HeadConfig(), (), 'fill_mask', 'bert', None, True, lambda: params)


def make(rngs: nnx.Rngs) -> PretrainingModel:
    return PretrainingModel(CONFIG, has_pairs=False, rngs=rngs)


def params_of(seed: int) -> dict:
    return jax.jit(lambda: nnx.to_pure_dict(nnx.state(make(nnx.Rngs(seed)))))()


def test_a_module_gets_all_parameters_and_leaves_the_rest():
    params = params_of(3)
    module = pretrained_module(make, pretrained(params | {'pooler': {'dense': {}}}))
    np.testing.assert_array_equal(module.masked_lm.transform.kernel[...], params['masked_lm']['transform']['kernel'])


def test_each_layer_has_arrays_of_its_own():
    """Each layer has separate arrays on a device; NumPy arrays would be copied to the device at each call."""
    params = jax.device_get(params_of(3))
    layer = pretrained_module(make, pretrained(params)).encoder.stack.layers[0]
    kernel = layer.attention.query.kernel[...]
    assert isinstance(kernel, jax.Array)
    np.testing.assert_array_equal(kernel, params['encoder']['stack']['layers']['attention']['query']['kernel'][0])


def test_what_is_missing_is_named():
    params = params_of(3)
    del params['masked_lm']['norm']
    with pytest.raises(InputError, match=r'^the checkpoint has no masked_lm/norm/(bias|scale)$'):
        pretrained_module(make, pretrained(params))
    assert match_tree_structure({'a': 1}, {'a': 2, 'b': 3}, '') == {'a': 2}


def test_rows_are_as_long_as_there_are_positions():
    assert row_length(pretrained({})) == 6
    rotary = ModelConfig(width=8, heads=2, layers=1, positions='none', rotary=True)
    assert row_length(pretrained({}, rotary)) == 512
