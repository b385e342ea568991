"""One encoder layer: attention and feed-forward, each with its residual, norm and dropout."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import Array

from efficient_attention.attention.dropout import dropout
from efficient_attention.modules.attention import SelfAttention
from efficient_attention.modules.config import LayerConfig
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.parameters import layer_norm


def fold(rng: Array | None, number: int | Array) -> Array | None:
    """An independent key (or one a row, for keys [B]); None stays None, which means no dropout."""
    if rng is None:
        return None
    return (
        jax.random.fold_in(rng, number) if rng.ndim == 0 else jax.vmap(lambda key: jax.random.fold_in(key, number))(rng)
    )


class Layer(nnx.Module):
    """Self-attention, then feed-forward, [B, L, D] -> [B, L, D].

    'post': x = norm(x + dropout(f(x))) as in BERT; 'pre': x = x + dropout(f(norm(x))).
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.attention = SelfAttention(config, rngs=rngs)
        self.attention_norm = layer_norm(config, config.width, rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.feed_forward_norm = layer_norm(config, config.width, rngs)

    def __call__(
        self, x_BLD: Array, segments_BL: Array, positions_BL: Array, *, rng: Array | None = None, **attention: Any
    ) -> Array:
        """The layer's output; `rng` (a key, or one a row) turns dropout on; `attention` as in `SelfAttention`."""

        def attend(x: Array) -> Array:
            return self.attention(x, segments_BL, positions_BL, rng=fold(rng, 0), **attention)

        x_BLD = self.residual(x_BLD, attend, self.attention_norm, fold(rng, 1))
        return self.residual(x_BLD, self.feed_forward, self.feed_forward_norm, fold(rng, 2))

    def residual(
        self, x_BLD: Array, sublayer: Callable[[Array], Array], norm: nnx.LayerNorm, rng: Array | None
    ) -> Array:
        """`x` plus the sub-layer's output, normalised before or after."""
        rate = self.config.dropout_rate
        if self.config.norm == 'pre':
            return x_BLD + dropout(sublayer(norm(x_BLD)), rate, rng)
        return norm(x_BLD + dropout(sublayer(x_BLD), rate, rng))
