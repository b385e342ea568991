"""Tests which layers are quantised, and that a model of stored codes equals one that rounds in each call."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.quantized import quantized_layers, store_int8_codes
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.int8 import fake_quantize
from tests.models.drawn import drawn

MODEL = ModelConfig(vocab_size=30, width=64, heads=4, layers=3, max_length=16, init_std=0.1, quantization='int8')
HEAD = HeadConfig(kind='sequence', outputs=3)
BATCH = {
    'tokens': np.arange(32, dtype=np.int32).reshape(2, 16) % 30,
    'segments': np.int32([[1] * 16, [1] * 9 + [0] * 7]),
    'token_types': np.zeros((2, 16), np.int32),
}


def parts_of(config: ModelConfig) -> tuple[nnx.GraphDef, dict]:
    return drawn(lambda: FineTuningModel(config, HEAD, rngs=nnx.Rngs(0)), std=0.1)


def logits(model: FineTuningModel) -> jax.Array:
    return model.outputs(BATCH)['logits']


def test_all_but_the_last_layer_and_those_that_stay_float_are_rounded():
    names = {name for name, _ in quantized_layers(nnx.merge(*parts_of(MODEL)))}
    tables = {f'encoder/embeddings/{name}' for name in ('position', 'token', 'token_type')}
    kernels = {f'attention/{name}' for name in ('key', 'out', 'query', 'value')} | {
        'feed_forward/down',
        'feed_forward/up',
    }
    assert names == tables | {'pooler/dense'} | {f'encoder/stack/layers/{name}' for name in kernels}
    some = dataclasses.replace(MODEL, float_layers=('^encoder/embeddings', 'down$'))
    assert {name for name, _ in quantized_layers(nnx.merge(*parts_of(some)))} == {
        name for name in names if 'embeddings' not in name and 'down' not in name
    }
    assert quantized_layers(nnx.merge(*parts_of(dataclasses.replace(MODEL, quantization='none')))) == []


@pytest.mark.parametrize('sizes', [{}, {'layer_units': (256, 0, 256)}], ids=str)
@pytest.mark.parametrize('mode, tolerance', [('int8_weights', 1e-5), ('int8', 0.02)])
def test_codes_compute_what_the_rounding_model_does(mode: str, tolerance: float, sizes: dict):
    """A model of stored codes equals the rounding model, except where a rounded input has another code.

    Both models round sums that differ in their last bits, and the largest number of a token may be between two codes.
    The next test compares each layer separately.
    """
    config = dataclasses.replace(MODEL, quantization=mode, **sizes)
    graph, params = parts_of(config)
    plain_graph, _ = parts_of(dataclasses.replace(config, quantization='none'))

    @jax.jit
    def run(params: dict) -> list[jax.Array]:
        """Returns logits: rounded, not rounded, of stored codes, and of codes in layers with separate arrays."""
        model = nnx.merge(graph, params)
        found = [logits(model), logits(nnx.merge(plain_graph, params))]
        store_int8_codes(model)
        kernel = model.pooler.dense.kernel[...]
        assert kernel.dtype == jnp.int8 and model.head.out.kernel[...].dtype == jnp.float32
        coded_graph, coded = nnx.split(model)
        separate = nnx.merge(*lay_out_for_inference(coded_graph, nnx.to_pure_dict(coded)))
        return [*found, logits(model), logits(separate)]

    before, plain, coded, separate = map(np.asarray, run(params))
    np.testing.assert_allclose(coded, before, atol=tolerance)
    np.testing.assert_allclose(separate, before, atol=tolerance)
    assert 1e-4 < np.abs(before - plain).max() < 0.1


@pytest.mark.parametrize('mode', ['int8_weights', 'int8'])
def test_each_layer_of_codes_computes_what_it_would_round(mode: str):
    """With equal inputs each layer's output is equal to the last bits.

    Outputs of whole models do not show this: there a different code in one layer changes all later rounded layers.
    """
    graph, params = parts_of(dataclasses.replace(MODEL, quantization=mode))

    @jax.jit
    def run(params: dict) -> dict[str, list[jax.Array]]:
        """Returns each layer's output (of a stack, the first layer's) when rounding, with stored codes, and not
        rounded.
        """
        rounding, coded, plain = (nnx.merge(graph, params) for _ in range(3))
        store_int8_codes(coded)
        found = {}
        layers = map(quantized_layers, (rounding, coded, plain))
        for (name, layer), (_, codes), (_, floats) in zip(*layers, strict=True):
            floats.quantization = 'none'
            rows = layer.kernel.shape[-2] if isinstance(layer, Dense) else layer.embedding.shape[-2]
            x = NUMBERS[:, :rows] if isinstance(layer, Dense) else jnp.arange(rows)
            found[name] = [output(one, x, is_stacked='/stack/' in name) for one in (layer, codes, floats)]
        return found

    for name, (rounded_one, of_codes, exact) in jax.device_get(run(params)).items():
        np.testing.assert_allclose(of_codes, rounded_one, atol=1e-5, err_msg=name)
        assert np.abs(of_codes - exact).max() > 1e-4, name


NUMBERS = np.random.default_rng(0).normal(size=(9, 256)).astype(np.float32)


def output(layer: nnx.Module, x: Any, *, is_stacked: bool) -> jax.Array:
    graph, state = nnx.split(layer)
    state = jax.tree.map(lambda leaf: leaf[0], state) if is_stacked else state
    return nnx.merge(graph, state)(x)


def test_a_dense_layer_has_the_gradients_of_its_rounded_operands():
    layer = nnx.merge(*parts_of(MODEL)).pooler.dense
    x = NUMBERS[:5, :64]

    @nnx.jit
    def run(layer: Dense) -> list[tuple[jax.Array, jax.Array]]:
        """Returns pairs of arrays that should be nearly equal."""
        of_layer, to_x = nnx.grad(lambda layer, x: (layer(x) ** 2).sum(), argnums=(0, 1))(layer, x)
        kernel = layer.kernel[...]
        out = fake_quantize(x, -1) @ fake_quantize(kernel, 0) + layer.bias[...][None]
        pairs = [(layer(x), out), (of_layer.kernel[...], fake_quantize(x, -1).T @ (2 * out))]
        return [*pairs, (to_x, (2 * out) @ fake_quantize(kernel, 0).T)]

    for found, expected in run(layer):
        # Compiled and uncompiled divisions round differently, so that a few codes differ.
        np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.05)
