"""One encoder layer: attention and feed-forward, each with its residual, norm and dropout."""

from typing import Any

import jax
from flax import nnx
from jax import Array

from efficient_attention.attention.dropout import dropout
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import SelfAttention
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
        is_post = self.config.norm == 'post'
        x_BLD = x_BLD + self.attention_branch(x_BLD, segments_BL, positions_BL, rng=rng, **attention)
        x_BLD = self.attention_norm(x_BLD) if is_post else x_BLD
        x_BLD = x_BLD + self.feed_forward_branch(x_BLD, rng=rng)
        return self.feed_forward_norm(x_BLD) if is_post else x_BLD

    def attention_branch(
        self, x_BLD: Array, segments_BL: Array, positions_BL: Array, *, rng: Array | None = None, **attention: Any
    ) -> Array:
        """What attention adds to `x`: dropout(attention(x)), or of norm(x) in a 'pre' layer."""
        if self.config.norm == 'pre':
            x_BLD = self.attention_norm(x_BLD)
            memory = attention.get('memory')
            if memory is not None:
                attention['memory'] = memory._replace(states_BMD=self.attention_norm(memory.states_BMD))
        out_BLD = self.attention(x_BLD, segments_BL, positions_BL, rng=fold(rng, 0), **attention)
        return dropout(out_BLD, self.config.dropout_rate, fold(rng, 1))

    def feed_forward_branch(self, x_BLD: Array, *, rng: Array | None = None) -> Array:
        """What the feed-forward sub-layer adds to `x`, likewise."""
        x_BLD = self.feed_forward_norm(x_BLD) if self.config.norm == 'pre' else x_BLD
        return dropout(self.feed_forward(x_BLD), self.config.dropout_rate, fold(rng, 2))
