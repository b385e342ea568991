"""Tests layers with separate arrays: results equal the scan's for every kind of stack, without its copies of arrays."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.segment_memory import SegmentMemory
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SIZES: dict[str, Any] = {
    'width': 16, 'heads': 2, 'layers': 4, 'vocab_size': 11, 'max_length': 6, 'token_types': 0, 'positions': 'none',
    'attention': 'causal',
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    'plain': {'attention': 'causal; causal & window(2)', 'rotary': True},
    'distances': {'layers': 2, 'relative': 'transformer_xl', 'norm': 'pre', 'relative_shared_biases': False},
    'groups': {'sharing': 'all', 'layer_groups': 2, 'relative': 't5'},
    'reversible': {'layers': 2, 'stack': 'reversible', 'norm': 'pre', 'relative': 'tupe'},
}
TOKENS, ONES = jax.device_put((np.int32([[1, 4, 2, 9, 3, 3], [7, 7, 1, 10, 5, 2]]), np.ones((2, 6), np.int32)))
KEYS = jax.random.split(jax.random.key(1), 2)


@functools.cache
def both_of(name: str) -> tuple[tuple[nnx.GraphDef, dict], tuple[nnx.GraphDef, dict]]:
    """Returns a decoder with stacked parameters, and the same decoder laid out for inference."""
    config = ModelConfig(**SIZES | CASES.get(name, {'sharing': 'all'}))
    model = jax.device_get(drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    return model, lay_out_for_inference(*model)


@pytest.mark.parametrize('name', CASES)
def test_outputs_are_those_of_the_scan_with_the_same_keys(name: str):
    outs = []
    for graph, params in both_of(name):
        outs.append(jax.jit(lambda params, graph=graph: nnx.merge(graph, params)(TOKENS, ONES, rng=KEYS))(params))
    assert_close(*outs)


@pytest.mark.parametrize('name', ['plain', 'reversible'])
def test_caches_of_separate_layers_hold_what_those_of_stacked_ones_do(name: str):
    results = []
    for graph, params in both_of(name):

        def read(params: dict, graph: nnx.GraphDef = graph) -> Any:
            cached = CachedDecoder(nnx.merge(graph, params), 6)
            return cached(cached.init_state(2), TOKENS)

        results.append(jax.jit(read)(params))
    assert_close(*results)


@pytest.mark.parametrize('name', ['plain', 'distances'])
def test_memory_goes_on_alike(name: str):
    results = []
    for graph, params in both_of(name):
        model = nnx.merge(graph, params)
        memory = memory_of(model.config)
        results.append(jax.jit(lambda model=model, memory=memory: model.continue_from_memory(TOKENS, ONES, memory))())
    assert_close(*results)


def memory_of(config: ModelConfig) -> SegmentMemory:
    """Returns a segment memory of four tokens."""
    states = np.random.default_rng(2).normal(size=(2, config.layers, 4, config.width)).astype(np.float32)
    return SegmentMemory(*jax.device_put((states, np.ones((2, 4), np.int32))))


@pytest.mark.parametrize('name, arrays', [('plain', 4), ('groups', 2), ('reversible', 2)])
def test_each_layers_parameters_are_arrays_and_nothing_is_scanned(name: str, arrays: int):
    (_, stacked), (graph, params) = both_of(name)
    layers = params['stack']['layers']
    assert len(layers) == arrays
    for number, layer in layers.items():
        expected = jax.tree.map(lambda leaf, number=number: leaf[int(number)], stacked['stack']['layers'])
        jax.tree.map(np.testing.assert_array_equal, layer, expected)
    text = str(jax.make_jaxpr(lambda params: nnx.merge(graph, params)(TOKENS, ONES))(params))
    assert 'scan[' not in text


def test_a_shared_layer_and_what_is_separate_already_stay_as_they_are():
    (graph, params), (same_graph, same) = both_of('shared')
    assert graph == same_graph
    assert all(a is b for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(same), strict=True))
    _, separate = both_of('groups')
    graph, again = lay_out_for_inference(*separate)
    assert graph == separate[0]
    assert all(a is b for a, b in zip(jax.tree.leaves(separate[1]), jax.tree.leaves(again), strict=True))
