"""One vector of a row's vectors, by one of several means, and the dense layer that may follow."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with, weights_with
from efficient_attention.attention.patterns import Full
from efficient_attention.attention.request import CallOptions
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS, FeedForward
from efficient_attention.modules.parameters import kernel_init, linear, make_norm

EVERYTHING = Softmax(Full())
POOLER_FUNCTIONS = {'tanh': jnp.tanh} | ACTIVATION_FUNCTIONS
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


class MultiheadPooling(nnx.Module):
    """norm(h + FF(h)) with h = norm(s + multi-head attention of s to the row), s [D] learned.

    Source: Lee et al. 2019, "Set Transformer" (arXiv 1810.00825), equations 6, 7 and 12 with one seed vector; the
    feed-forward layer that equation 12 has before it is the encoder's last one, as in the released code. Heads and
    sizes are the encoder's, attention is softmax of all tokens, and nothing is dropped.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        width, inner = config.width, config.heads * config.head_width
        self.config = config
        drawn = kernel_init(config, 1.0 / math.sqrt(width))
        self.seed = nnx.Param(drawn(rngs.params(), (width,), jnp.float32))
        self.query, self.key, self.value = (linear(config, width, inner, rngs) for _ in range(3))
        self.out = linear(config, inner, width, rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.norms = nnx.List([make_norm(config, width, rngs) for _ in range(2)])

    def __call__(self, x_BLD: Array, segments_BL: Array) -> Array:
        """The vector of each row [B, D], in the dtype of `x`; segment 0 = padding, and a row of it gives zeros."""
        query_BLHK, key_BLHK = self.compared(x_BLD)
        value_BLHK = self.split_heads(self.value(x_BLD))
        out_BLHK, _ = attend_with(query_BLHK, key_BLHK, value_BLHK, EVERYTHING, all_tokens(segments_BL))
        h_BLD = self.norms[0](self.seeds(x_BLD) + self.out(jax.lax.collapse(out_BLHK, 2)))
        pooled_BD = self.norms[1](h_BLD + self.feed_forward(h_BLD))[:, 0]
        return jnp.where((segments_BL > 0).any(axis=1, keepdims=True), pooled_BD, jnp.zeros_like(pooled_BD))

    def weights(self, x_BLD: Array, segments_BL: Array) -> Array:
        """float32 [B, L]: how much each position weighs, the mean over heads."""
        weights_BHLM = weights_with(*self.compared(x_BLD), EVERYTHING, all_tokens(segments_BL))
        return weights_BHLM[:, :, 0].mean(axis=1)

    def compared(self, x_BLD: Array) -> tuple[Array, Array]:
        """The seed's query [B, 1, H, K] and the row's keys [B, L, H, K]."""
        return self.split_heads(self.query(self.seeds(x_BLD))), self.split_heads(self.key(x_BLD))

    def seeds(self, x_BLD: Array) -> Array:
        """The learned vector as a row of one position [B, 1, D], in the dtype of `x`."""
        seed_D = jnp.asarray(self.seed[...]).astype(x_BLD.dtype)
        return jnp.broadcast_to(seed_D, (x_BLD.shape[0], 1, seed_D.shape[0]))

    def split_heads(self, x_BLI: Array) -> Array:
        """[B, L, H x K] -> [B, L, H, K]."""
        return x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width)


class Pooler(nnx.Module):
    """tanh, or another activation, of a dense layer on the vector of a row, [B, D] -> [B, D], or on several, joined."""

    def __init__(self, config: LayerConfig, *, activation: str = 'tanh', vectors: int = 1, rngs: nnx.Rngs) -> None:
        self.dense = linear(config, vectors * config.width, config.width, rngs)
        self.activation = activation

    def __call__(self, x_BD: Array) -> Array:
        """The vectors after the dense layer and the activation."""
        return POOLER_FUNCTIONS[self.activation](self.dense(x_BD))


def all_tokens(segments_BL: Array) -> CallOptions:
    """The options by which one query reads all tokens of its row, whichever their segment."""
    is_token_BL = (segments_BL > 0).astype(jnp.int32)
    return CallOptions(query_segments=jnp.ones_like(is_token_BL[:, :1]), key_segments=is_token_BL)
