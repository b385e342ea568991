"""One vector of a row's vectors: its first one, their mean, their mean by learned weights, or what a query reads."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.multihead_pooling import MultiheadPooling
from efficient_attention.modules.parameters import kernel_init, linear

MASKED = -1e30  # the score of padding: finite, so that a row of padding has no NaN


class Pooling(nnx.Module):
    """A row's vectors [B, L, D] to one [B, D]; but for 'first' padding has no part in it, and alone gives zeros.

    'first' = the vector of the first position, whatever stands there, padding too; 'mean' = the mean over the row's
    tokens; 'attention' = sum a h with a = softmax(u . q), u = tanh(W h + b) and a learned query q (Yang et al. 2016,
    "Hierarchical Attention Networks for Document Classification", section 2.2); 'multihead' = `MultiheadPooling`, that
    of the Set Transformer.
    """

    def __init__(self, config: LayerConfig, kind: str, *, rngs: nnx.Rngs) -> None:
        self.kind, width = kind, config.width
        self.dense = linear(config, width, width, rngs) if kind == 'attention' else None
        drawn = kernel_init(config, 1.0 / math.sqrt(width)) if kind == 'attention' else None
        self.query = None if drawn is None else nnx.Param(drawn(rngs.params(), (width,), jnp.float32))
        self.multihead = MultiheadPooling(config, rngs=rngs) if kind == 'multihead' else None

    def __call__(self, x_BLD: Array, segments_BL: Array) -> Array:
        """The vector of each row, in the dtype of `x`; segment 0 = padding."""
        if self.kind == 'first':
            return x_BLD[:, 0]
        if self.multihead is not None:
            return self.multihead(x_BLD, segments_BL)
        weights_BL = self.weights(x_BLD, segments_BL)
        return jnp.einsum('BL,BLD->BD', weights_BL, x_BLD.astype(jnp.float32)).astype(x_BLD.dtype)

    def weights(self, x_BLD: Array, segments_BL: Array) -> Array:
        """float32 [B, L]: how much each position weighs in its row's vector; 1 in all where there is a token."""
        if self.multihead is not None:
            return self.multihead.weights(x_BLD, segments_BL)
        shares_BL = (segments_BL > 0).astype(jnp.float32)
        if self.kind == 'first':
            return shares_BL * (jnp.arange(x_BLD.shape[1]) == 0).astype(jnp.float32)[None]
        if self.dense is not None and self.query is not None:
            u_BLD = jnp.tanh(self.dense(x_BLD)).astype(jnp.float32)
            scores_BL = jnp.einsum('BLD,D->BL', u_BLD, jnp.asarray(self.query[...]))
            scores_BL = jnp.where(shares_BL > 0, scores_BL, MASKED)
            highest_B1 = jax.lax.stop_gradient(scores_BL.max(axis=1, keepdims=True))
            shares_BL = shares_BL * jnp.exp(scores_BL - highest_B1)
        total_B1 = shares_BL.sum(axis=1, keepdims=True)
        return shares_BL / jnp.where(total_B1 > 0, total_B1, 1.0)
