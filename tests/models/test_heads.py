"""The heads against their formulas, and the tie between the token table and the logits."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.pretraining import MaskedLMHead, PairHead
from efficient_attention.modules.feed_forward import gelu_tanh
from efficient_attention.modules.parameters import embedding
from efficient_attention.modules.pooling import Pooler
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, vocab_size=11, embedding_width=8, init_std=0.3)
X = jax.random.normal(jax.random.key(0), (2, 5, 16))


def normalised(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def head_and_table(config: ModelConfig) -> tuple[MaskedLMHead, nnx.Embed]:
    table = embedding(config, config.vocab_size, config.embedding_width, nnx.Rngs(1))
    return MaskedLMHead(config, rngs=nnx.Rngs(0)), table


def test_masked_lm_formula():
    head, table = head_and_table(CONFIG)
    head.bias[...] = jnp.arange(11.0)
    x_BPE = normalised(gelu_tanh(X @ head.transform.kernel[...]))
    assert_close(head(X, table), x_BPE @ table.embedding[...].T + jnp.arange(11.0)[None, None])


def test_masked_lm_gradient_reaches_the_shared_table_and_the_bias():
    head, table = head_and_table(CONFIG)

    def loss(parts: tuple[MaskedLMHead, nnx.Embed]) -> jax.Array:
        return (parts[0](X, parts[1]) ** 2).sum()

    head_gradient, table_gradient = nnx.grad(loss)((head, table))
    assert jnp.abs(table_gradient['embedding'][...]).min() > 0
    assert jnp.abs(head_gradient['bias'][...]).min() > 0


def test_pooler_is_tanh_of_a_dense_layer():
    pooler = Pooler(CONFIG, rngs=nnx.Rngs(0))
    assert_close(pooler(X[:, 0]), jnp.tanh(X[:, 0] @ pooler.dense.kernel[...]))


def test_pair_head_is_one_dense_layer():
    head = PairHead(CONFIG, rngs=nnx.Rngs(0))
    assert_close(head(X[:, 0]), X[:, 0] @ head.dense.kernel[...])


@pytest.mark.lenient_promotion
def test_logits_are_float32_whatever_the_compute_dtype():
    config = ModelConfig(width=16, heads=2, vocab_size=11, init_std=0.3, dtype='bfloat16')
    head, table = head_and_table(config)
    x = X.astype(jnp.bfloat16)
    assert head(x, table).dtype == jnp.float32
    pooled = Pooler(config, rngs=nnx.Rngs(0))(x[:, 0])
    assert pooled.dtype == jnp.bfloat16
    assert PairHead(config, rngs=nnx.Rngs(0))(pooled).dtype == jnp.float32
