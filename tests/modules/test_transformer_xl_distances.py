"""Tests a layer's Transformer-XL relative term against the paper's four terms, written out for all pairs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.layer_context import Context
from efficient_attention.modules.positions import sinusoid
from efficient_attention.modules.transformer_xl_distances import DistanceBiases, DistanceTerm
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

LENGTH = 9
FIELDS = {'width': 16, 'heads': 2, 'attention': 'causal', 'relative': 'transformer_xl', 'init_std': 0.5}


def make(**fields) -> LayerConfig:
    return LayerConfig(**FIELDS | fields)


@pytest.mark.parametrize('clamp', [0, 4])
@pytest.mark.parametrize('is_shared', [True, False])
def test_attention_has_the_papers_four_terms(clamp: int, is_shared: bool):
    config = make(clamp_length=clamp, relative_shared_biases=is_shared)
    layer = nnx.merge(*drawn(lambda: Attention(config, rngs=nnx.Rngs(0))))
    biases = nnx.merge(*drawn(lambda: DistanceBiases(config, rngs=nnx.Rngs(1))))
    segments, positions = jnp.ones((2, LENGTH), jnp.int32), jnp.zeros((2, LENGTH), jnp.int32)

    @quick
    def both_ways(x_BLD: jax.Array) -> tuple[jax.Array, jax.Array]:
        shared = biases() if is_shared else None
        out, _ = layer.run(x_BLD, Context(segments, positions, distance_biases=shared))
        return out, four_terms(layer, x_BLD, positions, shared or layer.distances.biases())

    assert_close(*both_ways(np.random.default_rng(0).normal(size=(2, LENGTH, 16)).astype(np.float32)))


def four_terms(layer: Attention, x_BLD: jax.Array, positions: jax.Array, biases: tuple) -> jax.Array:
    """Computes the layer's output by the paper's equation."""
    config, (u_HK, v_HK) = layer.config, biases
    q, k, value = layer.project_with_memory(x_BLD, positions, config.mechanisms[0])
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None]
    distance = np.minimum(np.maximum(distance, 0), config.clamp_length or LENGTH)
    r_LMHK = layer.distances.projection(sinusoid(jnp.asarray(distance), 16)).reshape(LENGTH, LENGTH, 2, 8)
    logits = jnp.einsum('BLHK,BMHK->BHLM', q, k) + jnp.einsum('HK,BMHK->BHM', u_HK, k)[:, :, None]
    logits += jnp.einsum('BLHK,LMHK->BHLM', q, r_LMHK) + jnp.einsum('HK,LMHK->HLM', v_HK, r_LMHK)[None]
    weights = jax.nn.softmax(jnp.where(np.tri(LENGTH, dtype=bool), logits / math.sqrt(8), -1e30))
    return layer.merge_and_project_heads(jnp.einsum('BHLM,BMHK->BLHK', weights, value))


def test_shared_biases_are_asked_for():
    term = nnx.merge(*drawn(lambda: DistanceTerm(make(), rngs=nnx.Rngs(0))))
    with pytest.raises(ValueError, match='needs the argument `distance_biases`'):
        term(jnp.zeros((1, 3, 2, 8)), 3, None)


def test_the_projection_has_no_bias_and_biases_are_one_vector_a_head():
    config = make()
    shapes = jax.tree.map(
        jnp.shape, nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: DistanceTerm(config, rngs=nnx.Rngs(0)))))
    )
    assert shapes == {'projection': {'kernel': (16, 16)}}
    biases = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: DistanceBiases(config, rngs=nnx.Rngs(0)))))
    assert jax.tree.map(jnp.shape, biases) == {'content': (2, 8), 'distance': (2, 8)}
