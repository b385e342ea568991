"""Tests that a call with a pattern of several layers equals the call with the pattern of its layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend_with_options
from efficient_attention.attention.layer_choice import compute_for_layer, layer_index
from efficient_attention.attention.patterns.presets import bigbird
from efficient_attention.attention.request import CallOptions
from efficient_attention.attention.softmax.definition import Softmax
from tests.tolerances import assert_close

LAYERS = (1, 3, 4)


def test_the_index_of_a_layer():
    pattern = bigbird(4, 1).for_layer(LAYERS)
    assert [int(layer_index(pattern, layer)) for layer in LAYERS] == [0, 1, 2]
    assert layer_index(bigbird(4, 1), 3) is None
    with pytest.raises(ValueError, match='covers several layers; pass layer=<number>'):
        layer_index(pattern, None)


def test_the_program_computes_the_patterns_of_the_layer():
    pattern = bigbird(4, 1).for_layer(LAYERS)
    find = jax.jit(lambda index: compute_for_layer(lambda one: jnp.int32(one[0].parts()[1].layer), (pattern,), index))
    assert [int(find(index)) for index in range(3)] == list(LAYERS)


# Tiles as large as the blocks need no mask of the pattern; larger tiles do.
@pytest.mark.parametrize('backend, tile', [('blocked', 4), ('blocked', 16), ('dense', 4)])
def test_a_call_equals_the_call_with_the_pattern_of_its_layer(backend: str, tile: int):
    rng = np.random.default_rng(0)
    q, k, v, weights = (jnp.asarray(rng.normal(size=(2, 96, 2, 8)), jnp.float32) for _ in range(4))
    mechanism = Softmax(bigbird(4, 2), tile=tile)

    def gradients(several: bool, layer: int | jax.Array, number: int) -> tuple:
        own = mechanism.for_layer(LAYERS if several else number)

        def loss(*vectors: jax.Array) -> jax.Array:
            options = CallOptions(backend=backend, layer=layer, dropout_rate=0.2, dropout_rng=jax.random.key(3))
            return (attend_with_options(*vectors, own, options)[0] * weights).sum()

        return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)

    chosen = jax.jit(lambda layer: gradients(True, layer, 0))
    results = [chosen(jnp.int32(layer)) for layer in LAYERS]
    for layer, result in zip(LAYERS, results, strict=True):
        assert_close(result, jax.jit(lambda layer=layer: gradients(False, layer, layer))(), gradient=True)
    assert abs(results[0][0] - results[1][0]) > 1e-2
