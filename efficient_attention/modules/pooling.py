"""Pools the vectors of a row to one vector, by one of several methods; also has the dense layer (pooler) that may
follow.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with_options, weights_with_options
from efficient_attention.attention.patterns import Full
from efficient_attention.attention.request import CallOptions
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS, FeedForward
from efficient_attention.modules.layer_constructors import kernel_init, linear, make_norm

EVERYTHING = Softmax(Full())
POOLER_FUNCTIONS = {'tanh': jnp.tanh} | ACTIVATION_FUNCTIONS
MASKED = -1e30  # score of padding; it is finite, so that a row of only padding gives no NaN


class Pooling(nnx.Module):
    """Pools the vectors of each row, [B, L, D], to one vector, [B, D], by the method that the config selects.

    - 'first': the vector of the first position, even if it is padding.
    - 'mean': the mean over the row's tokens.
    - 'attention': sum a h with a = softmax(u . q), u = tanh(W h + b) and a learned query q (Yang et al. 2016,
      "Hierarchical Attention Networks for Document Classification", section 2.2).
    - 'multihead': `MultiheadPooling` from the Set Transformer.

    All methods except 'first' ignore padding; a row of padding gives zeros.
    """

    def __init__(self, config: LayerConfig, kind: str, *, rngs: nnx.Rngs) -> None:
        self.kind, width = kind, config.width
        self.dense = linear(config, width, width, rngs) if kind == 'attention' else None
        drawn = kernel_init(config, 1.0 / math.sqrt(width)) if kind == 'attention' else None
        self.query = None if drawn is None else nnx.Param(drawn(rngs.params(), (width,), jnp.float32))
        self.multihead = MultiheadPooling(config, rngs=rngs) if kind == 'multihead' else None

    def __call__(self, x_BLD: Array, segments_BL: Array) -> Array:
        """Returns the pooled vector of each row, in the dtype of the input vectors; segment 0 is padding."""
        if self.kind == 'first':
            return x_BLD[:, 0]
        if self.multihead is not None:
            return self.multihead(x_BLD, segments_BL)
        weights_BL = self.pooling_weights(x_BLD, segments_BL)
        return jnp.einsum('BL,BLD->BD', weights_BL, x_BLD.astype(jnp.float32)).astype(x_BLD.dtype)

    def pooling_weights(self, x_BLD: Array, segments_BL: Array) -> Array:
        """Returns the weight of each position in the pooled vector, float32 [B, L].

        The weights of a row sum to 1 if the row has a token. For 'first', they are 0 if the first position is padding.
        """
        if self.multihead is not None:
            return self.multihead.pooling_weights(x_BLD, segments_BL)
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
    """The Set Transformer's pooling by multi-head attention, whose only query is a learned seed vector s [D].

    The pooled vector is norm(h + FF(h)) with h = norm(s + multi-head attention of s to the row). Source: Lee et al.
    2019, "Set Transformer" (arXiv 1810.00825), equations 6, 7 and 12 with one seed vector. Equation 12 has a
    feed-forward layer before it. As in the released code, the encoder's last feed-forward layer replaces it. Heads and
    sizes are the encoder's, attention is softmax over all tokens, and there is no dropout.
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
        """Returns the pooled vector of each row [B, D], in the dtype of the input vectors.

        Segment 0 = padding; a row of padding gives zeros.
        """
        query_BLHK, key_BLHK = self.query_and_keys(x_BLD)
        value_BLHK = self.split_heads(self.value(x_BLD))
        out_BLHK, _ = attend_with_options(query_BLHK, key_BLHK, value_BLHK, EVERYTHING, all_token_options(segments_BL))
        h_BLD = self.norms[0](self.seeds(x_BLD) + self.out(jax.lax.collapse(out_BLHK, 2)))
        pooled_BD = self.norms[1](h_BLD + self.feed_forward(h_BLD))[:, 0]
        return jnp.where((segments_BL > 0).any(axis=1, keepdims=True), pooled_BD, jnp.zeros_like(pooled_BD))

    def pooling_weights(self, x_BLD: Array, segments_BL: Array) -> Array:
        """Returns the attention weight of each position in the pooled vector, as a mean over heads, float32 [B, L]."""
        weights_BHLM = weights_with_options(*self.query_and_keys(x_BLD), EVERYTHING, all_token_options(segments_BL))
        return weights_BHLM[:, :, 0].mean(axis=1)

    def query_and_keys(self, x_BLD: Array) -> tuple[Array, Array]:
        """Returns the query of the learned seed vector, [B, 1, H, K], and the keys of the row, [B, L, H, K]."""
        return self.split_heads(self.query(self.seeds(x_BLD))), self.split_heads(self.key(x_BLD))

    def seeds(self, x_BLD: Array) -> Array:
        """Returns the learned seed vector for each row, as a sequence of one position [B, 1, D], in the dtype of the
        row's vectors.
        """
        seed_D = jnp.asarray(self.seed[...]).astype(x_BLD.dtype)
        return jnp.broadcast_to(seed_D, (x_BLD.shape[0], 1, seed_D.shape[0]))

    def split_heads(self, x_BLI: Array) -> Array:
        """Reshapes projected vectors [B, L, H x K] to one vector per head, [B, L, H, K]."""
        return x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width)


class Pooler(nnx.Module):
    """A dense layer with tanh, or another activation, on the pooled vector of each row, [B, D] -> [B, D].

    With `vectors` above 1, the input is that many concatenated vectors.
    """

    def __init__(self, config: LayerConfig, *, activation: str = 'tanh', vectors: int = 1, rngs: nnx.Rngs) -> None:
        self.dense = linear(config, vectors * config.width, config.width, rngs)
        self.activation = activation

    def __call__(self, x_BD: Array) -> Array:
        """Returns the pooled vectors after the dense layer and the activation."""
        return POOLER_FUNCTIONS[self.activation](self.dense(x_BD))


def all_token_options(segments_BL: Array) -> CallOptions:
    """Returns the options of `attend` with which a single query reads all tokens of its row, whatever their
    segments.
    """
    is_token_BL = (segments_BL > 0).astype(jnp.int32)
    return CallOptions(query_segments=jnp.ones_like(is_token_BL[:, :1]), key_segments=is_token_BL)
