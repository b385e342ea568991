"""Tests recurrent layers in a reversible stack: outputs and gradients equal those with stored activations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.bidirectional_stacks import DirectionStacks
from efficient_attention.models.layer_stack import Stack
from efficient_attention.modules.layer_context import Context
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SEGMENTS = jax.device_put(np.int32([[1, 1, 1, 2, 2, 2, 0], [1] * 7]))
SIZES: dict[str, Any] = {'width': 8, 'layers': 3, 'norm': 'pre', 'feed_forward_width': 8, 'positions': 'none'}
SIZES |= {'stack': 'reversible', 'token_types': 0}


@pytest.mark.parametrize(
    'fields',
    [
        {'cell': 'lstm', 'dropout_rate': 0.3, 'state_dropout_rate': 0.4},
        {'cell': 'gru', 'dropout_rate': 0.0, 'recurrent_chunk': 3},
        {'cell': 'sru2', 'dropout_rate': 0.3, 'bidirectional': True},
        {'cell': 'lstm', 'dropout_rate': 0.0, 'bidirectional': True, 'directions_apart': True},
    ],
    ids=['lstm', 'gru in chunks', 'sru2 in both directions', 'directions apart'],
)
def test_gradients_are_those_of_all_kept(fields: dict[str, Any]):
    config = ModelConfig(**SIZES | fields)
    kind = DirectionStacks if config.directions_apart else Stack
    graph, params = drawn(lambda: kind(config, rngs=nnx.Rngs(0)), std=0.4)
    x_BLD, key = np.random.default_rng(1).normal(size=(2, 7, 8)).astype(np.float32), jax.random.key(2)

    def loss(params: Any, x_BLD: jax.Array, *, keeps_all: bool) -> jax.Array:
        stack, read = nnx.merge(graph, params), (x_BLD, Context(SEGMENTS, jnp.zeros_like(SEGMENTS), key))
        return jnp.sin(stack.with_layer_activations(*read)[0] if keeps_all else stack(*read)).sum()

    def of_both(params: Any, x_BLD: jax.Array) -> list[Any]:
        both = (lambda *args, all=all: loss(*args, keeps_all=all) for all in (False, True))
        return [jax.value_and_grad(one, (0, 1))(params, x_BLD) for one in both]

    found, expected = jax.jit(of_both)(params, x_BLD)
    assert_close(found, expected, gradient=True)


def test_directions_apart_keep_no_layer_of_a_reversible_stack():
    def kept(strategy: str) -> bool:
        """Returns whether gradients need stored arrays of all five layers and positions."""
        fields = {'layers': 5, 'cell': 'lstm', 'bidirectional': True, 'dropout_rate': 0.0, 'stack': strategy}
        graph, params = drawn(lambda: DirectionStacks(ModelConfig(**SIZES | fields), rngs=nnx.Rngs(0)), std=0.4)

        def call(x: jax.Array) -> jax.Array:
            return nnx.merge(graph, params)(x, Context(SEGMENTS, jnp.zeros_like(SEGMENTS)))

        pull = jax.eval_shape(lambda x: jax.vjp(call, x)[1], np.zeros((2, 7, 8), np.float32))
        return any(leaf.shape[:1] == (5,) and {2, 7} <= set(leaf.shape[1:]) for leaf in jax.tree.leaves(pull))

    assert kept('plain') and not kept('reversible')
