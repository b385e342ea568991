"""The layers that pretraining puts on an encoder: masked-token prediction, the pooled [CLS] vector, pair labels."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import spread
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.activations import ACTIVATION_FUNCTIONS
from efficient_attention.modules.parameters import linear, make_norm
from efficient_attention.modules.table import Table, table_logits

POOLER_FUNCTIONS = {'tanh': jnp.tanh} | ACTIVATION_FUNCTIONS


class MaskedLMHead(nnx.Module):
    """Logits over the vocabulary: dense D -> E, activation, norm, then the token table (tied) and a bias."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.activation = config.activation
        self.transform = linear(config, config.width, config.embedding_width, rngs)
        self.norm = make_norm(config, config.embedding_width, rngs)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))

    def __call__(self, x_BPD: Array, table: Table) -> Array:
        """float32 logits [B, P, V] from vectors [B, P, D] and the token table [V, E]."""
        x_BPE = self.norm(ACTIVATION_FUNCTIONS[self.activation](self.transform(x_BPD)))
        table_VE = table.vectors(x_BPE.dtype)
        logits_BPV = spread(table_logits(x_BPE, table_VE), 'BLV')
        return logits_BPV + self.bias[...][None, None]


class Pooler(nnx.Module):
    """tanh, or another activation, of a dense layer on the vector of a row, [B, D] -> [B, D], or on several, joined."""

    def __init__(self, config: ModelConfig, *, activation: str = 'tanh', vectors: int = 1, rngs: nnx.Rngs) -> None:
        self.dense = linear(config, vectors * config.width, config.width, rngs)
        self.activation = activation

    def __call__(self, x_BD: Array) -> Array:
        """The vectors after the dense layer and the activation."""
        return POOLER_FUNCTIONS[self.activation](self.dense(x_BD))


class PairHead(nnx.Module):
    """Two float32 logits a row from the pooled vector: next sentence (NSP) or sentence order (SOP)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = linear(config, config.width, 2, rngs, in_float32=True)

    def __call__(self, pooled_BD: Array) -> Array:
        """Logits [B, 2]; label 1 = random or swapped."""
        return self.dense(pooled_BD)
