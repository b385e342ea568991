"""Tests the heads against their formulas, and the tie between the token table and the logits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.pretraining import MaskedLMHead, PairHead
from efficient_attention.modules.layer_constructors import embedding
from efficient_attention.modules.pooling import Pooler
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, vocab_size=11, embedding_width=8, init_std=0.3)
X = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)


def normalised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    """Computes GELU with BERT's tanh approximation."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def table_of(config: ModelConfig) -> nnx.Embed:
    return embedding(config, config.vocab_size, config.embedding_width, nnx.Rngs(1))


def arrays_of(module: nnx.Module) -> dict:
    return jax.device_get(nnx.to_pure_dict(nnx.state(module)))


call = nnx.jit(lambda module, *inputs: module(*inputs))


def test_masked_lm_formula():
    head, table = (nnx.merge(*drawn(make)) for make in (head_of, lambda: table_of(CONFIG)))
    own, rows = arrays_of(head), arrays_of(table)['embedding']
    dense, norm = own['transform'], own['norm']
    x_BPE = normalised(gelu(X @ dense['kernel'] + dense['bias'])) * norm['scale'] + norm['bias']
    assert_close(call(head, X, table), x_BPE @ rows.T + own['bias'])


def head_of(config: ModelConfig = CONFIG) -> MaskedLMHead:
    return MaskedLMHead(config, rngs=nnx.Rngs(0))


def test_masked_lm_gradient_reaches_the_shared_table_and_the_bias():
    @nnx.jit
    def gradients(parts: tuple[MaskedLMHead, nnx.Embed]) -> tuple[nnx.State, nnx.State]:
        return nnx.grad(lambda parts: (parts[0](jnp.asarray(X), parts[1]) ** 2).sum())(parts)

    of_head, of_table = gradients((nnx.merge(*drawn(head_of)), nnx.merge(*drawn(lambda: table_of(CONFIG)))))
    assert np.abs(np.asarray(of_table['embedding'][...])).min() > 0
    assert np.abs(np.asarray(of_head['bias'][...])).min() > 0


@pytest.mark.parametrize('kind, activation', [(Pooler, np.tanh), (PairHead, lambda x: x)], ids=['pooler', 'pair head'])
def test_of_a_row_it_is_one_dense_layer_and_of_the_pooler_a_tanh(kind: Any, activation: Any):
    module = nnx.merge(*drawn(lambda: kind(CONFIG, rngs=nnx.Rngs(0))))
    dense = arrays_of(module)['dense']
    assert_close(call(module, X[:, 0]), activation(X[:, 0] @ dense['kernel'] + dense['bias']))


@pytest.mark.lenient_promotion
def test_logits_are_float32_whatever_the_compute_dtype():
    config = ModelConfig(width=16, heads=2, vocab_size=11, init_std=0.3, dtype='bfloat16')

    def outputs(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        pooled = Pooler(config, rngs=nnx.Rngs(0))(x[:, 0])
        return head_of(config)(x, table_of(config)), pooled, PairHead(config, rngs=nnx.Rngs(0))(pooled)

    dtypes = [out.dtype for out in jax.eval_shape(outputs, jnp.asarray(X, jnp.bfloat16))]
    assert dtypes == [jnp.float32, jnp.bfloat16, jnp.float32]
