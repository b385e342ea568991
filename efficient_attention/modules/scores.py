"""The learned operands of scores other than q k: a matrix, a vector, a table of keys; and of places to read around."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.parameters import embedding, kernel_init, linear


class General(nnx.Module):
    """The query q W of scores q W k, with a matrix for each head, [B, L, H, K] -> [B, L, H, K].

    Source: Luong et al. 2015, arXiv 1508.04025, equation 8, "general".
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        width = config.head_width
        draw = kernel_init(config, 1.0 / math.sqrt(width))
        self.matrix = nnx.Param(draw(rngs.params(), (config.heads, width, width), jnp.float32))

    def __call__(self, q_BLHK: Array) -> Array:
        """The queries that are multiplied with keys."""
        matrix_HKJ = jnp.asarray(self.matrix[...], q_BLHK.dtype)
        return float32_einsum('BLHK,HKJ->BLHJ', q_BLHK, matrix_HKJ).astype(q_BLHK.dtype)


class Additive(nnx.Module):
    """The vector v of scores v tanh(q + k), one for each head: [H, K] (Bahdanau et al. 2014, arXiv 1409.0473)."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        draw = kernel_init(config, 1.0 / math.sqrt(config.head_width))
        self.vector = nnx.Param(draw(rngs.params(), (config.heads, config.head_width), jnp.float32))

    def __call__(self) -> Array:
        """v [H, K], float32."""
        return jnp.asarray(self.vector[...])


class Location(nnx.Module):
    """The keys of scores that depend on query and key position alone: a learned vector for each position and head.

    Source: Luong et al. 2015, arXiv 1508.04025, equation 9: softmax(W h), whose rows these vectors are.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.table = embedding(config, config.location_length, config.heads * config.head_width, rngs)

    def __call__(self, positions_BM: Array) -> Array:
        """Keys [B, M, H x K] times sqrt(K), by which `attend` divides; NaN at positions that the table lacks."""
        return self.table(positions_BM) * math.sqrt(self.config.head_width)


class Centres(nnx.Module):
    """Where each query reads, as a share of what there is to read: sigmoid(v tanh(W h)), [B, L, D] -> [B, L, H].

    Source: Luong et al. 2015, arXiv 1508.04025, equation 9; here W and v are those of each head.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.hidden = linear(config, config.width, config.heads * config.head_width, rngs, axes='DI', use_bias=False)
        draw = kernel_init(config, 1.0 / math.sqrt(config.head_width))
        self.vector = nnx.Param(draw(rngs.params(), (config.heads, config.head_width), jnp.float32))

    def __call__(self, x_BLD: Array) -> Array:
        """The shares, float32 in (0, 1)."""
        hidden_BLI = jnp.tanh(self.hidden(x_BLD).astype(jnp.float32))
        hidden_BLHK = hidden_BLI.reshape(*x_BLD.shape[:2], self.config.heads, self.config.head_width)
        vector_11HK = jnp.asarray(self.vector[...])[None, None]
        return jax.nn.sigmoid((hidden_BLHK * vector_11HK).sum(axis=-1))
