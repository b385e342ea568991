"""Which layers are rounded, and a model of codes beside the one that rounds in each call."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.inference_layout import for_inference
from efficient_attention.models.quantized import quantized_layers, store_codes
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.int8 import rounded

MODEL = ModelConfig(vocab_size=30, width=64, heads=4, layers=3, max_length=16, init_std=0.1, quantization='int8')
HEAD = HeadConfig(kind='sequence', outputs=3)
BATCH = {
    'tokens': jnp.arange(32).reshape(2, 16) % 30,
    'segments': jnp.array([[1] * 16, [1] * 9 + [0] * 7]),
    'token_types': jnp.zeros((2, 16), int),
}


def model_of(config: ModelConfig) -> FineTuningModel:
    return FineTuningModel(config, HEAD, rngs=nnx.Rngs(0))


def logits(model: FineTuningModel) -> np.ndarray:
    graph, state = nnx.split(model)
    return np.asarray(jax.jit(lambda state: nnx.merge(graph, state).outputs(BATCH)['logits'])(state))


def test_all_but_the_last_layer_and_those_that_stay_float_are_rounded():
    names = {name for name, _ in quantized_layers(model_of(MODEL))}
    tables = {f'encoder/embeddings/{name}' for name in ('position', 'token', 'token_type')}
    kernels = {f'attention/{name}' for name in ('key', 'out', 'query', 'value')} | {
        'feed_forward/down',
        'feed_forward/up',
    }
    assert names == tables | {'pooler/dense'} | {f'encoder/stack/layers/{name}' for name in kernels}
    some = dataclasses.replace(MODEL, float_layers=('^encoder/embeddings', 'down$'))
    assert {name for name, _ in quantized_layers(model_of(some))} == {
        name for name in names if 'embeddings' not in name and 'down' not in name
    }
    assert quantized_layers(model_of(dataclasses.replace(MODEL, quantization='none'))) == []


@pytest.mark.parametrize('sizes', [{}, {'layer_units': (256, 0, 256)}], ids=str)
@pytest.mark.parametrize('mode, tolerance', [('int8_weights', 1e-5), ('int8', 0.02)])
def test_codes_compute_what_the_rounding_model_does(mode: str, tolerance: float, sizes: dict):
    """Of rounded inputs up to codes that fall otherwise: both round sums that differ in their last bits, and the
    largest number of a token lies between two codes. Each layer alone is compared below."""
    config = dataclasses.replace(MODEL, quantization=mode, **sizes)
    model = model_of(config)
    before = logits(model)
    plain = logits(model_of(dataclasses.replace(config, quantization='none')))
    store_codes(model)
    kernel = model.pooler.dense.kernel[...]
    assert kernel.dtype == jnp.int8 and model.head.out.kernel[...].dtype == jnp.float32
    np.testing.assert_allclose(logits(model), before, atol=tolerance)
    graph, state = nnx.split(model)
    graph, params = for_inference(graph, nnx.to_pure_dict(state))
    np.testing.assert_allclose(logits(nnx.merge(graph, params)), before, atol=tolerance)
    assert 1e-4 < np.abs(before - plain).max() < 0.1


@pytest.mark.parametrize('mode', ['int8_weights', 'int8'])
def test_each_layer_of_codes_computes_what_it_would_round(mode: str):
    """Of the same input to the last bits, which outputs of whole models do not show: there a code that falls otherwise
    in one layer moves all that are rounded behind it."""
    config = dataclasses.replace(MODEL, quantization=mode)
    rounding, coded, plain = (model_of(config) for _ in range(3))
    store_codes(coded)
    for (name, layer), (_, codes), (_, floats) in zip(*map(quantized_layers, (rounding, coded, plain)), strict=True):
        floats.quantization = 'none'
        rows = layer.kernel.shape[-2] if isinstance(layer, Dense) else layer.embedding.shape[-2]
        x = jax.random.normal(jax.random.key(0), (9, rows)) if isinstance(layer, Dense) else jnp.arange(rows)
        found = [output(one, x, is_stacked='/stack/' in name) for one in (layer, codes, floats)]
        np.testing.assert_allclose(found[1], found[0], atol=1e-5, err_msg=name)
        assert np.abs(found[1] - found[2]).max() > 1e-4, name


def output(layer: nnx.Module, x: jax.Array, *, is_stacked: bool) -> np.ndarray:
    """What a layer, or the first one of a stack, makes of these numbers or ids."""
    graph, state = nnx.split(layer)
    state = jax.tree.map(lambda leaf: leaf[0], state) if is_stacked else state
    return np.asarray(jax.jit(lambda state: nnx.merge(graph, state)(x))(state))


def test_a_dense_layer_has_the_gradients_of_its_rounded_operands():
    layer = model_of(MODEL).pooler.dense
    x = jax.random.normal(jax.random.key(0), (5, 64))
    found = nnx.grad(lambda layer: (layer(x) ** 2).sum())(layer)
    kernel = layer.kernel[...]
    out = rounded(x, -1) @ rounded(kernel, 0) + layer.bias[...][None]
    near = {'rtol': 0.02, 'atol': 0.05}  # a code here and there, as compiled and uncompiled divisions round otherwise
    np.testing.assert_allclose(layer(x), out, **near)
    np.testing.assert_allclose(found.kernel[...], rounded(x, -1).T @ (2 * out), **near)
    to_x = jax.grad(lambda x: (layer(x) ** 2).sum())(x)
    np.testing.assert_allclose(to_x, (2 * out) @ rounded(kernel, 0).T, **near)
