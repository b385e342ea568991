"""The attention sub-layer: query, key and value projections, one call into `attend`, the output projection."""

import jax
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend
from efficient_attention.attention.mechanisms import parse_mechanism
from efficient_attention.modules.config import LayerConfig
from efficient_attention.modules.parameters import linear
from efficient_attention.modules.positions import rotate


class SelfAttention(nnx.Module):
    """Multi-head self-attention [B, L, D] -> [B, L, D] (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        inner = config.heads * config.head_width
        self.config = config
        self.query = linear(config, config.width, inner, rngs)
        self.key = linear(config, config.width, inner, rngs)
        self.value = linear(config, config.width, inner, rngs)
        self.out = linear(config, inner, config.width, rngs)

    def __call__(self, x_BLD: Array, segments_BL: Array, positions_BL: Array, *, rng: Array | None = None) -> Array:
        """Attends within segments; `rng` (a key, or one a row) turns dropout of the weights on."""
        config = self.config
        q_BLHK, k_BLHK, v_BLHK = (self.split_heads(project(x_BLD)) for project in (self.query, self.key, self.value))
        if config.rotary:
            q_BLHK, k_BLHK = rotate(q_BLHK, positions_BL), rotate(k_BLHK, positions_BL)
        out_BLHK = attend(
            q_BLHK,
            k_BLHK,
            v_BLHK,
            parse_mechanism(config.attention),
            query_segments=segments_BL,
            key_segments=segments_BL,
            dropout_rate=0.0 if rng is None else config.attention_dropout_rate,
            rng=rng,
            backend=config.attention_backend,
        )
        return self.out(jax.lax.collapse(out_BLHK, 2))

    def split_heads(self, x_BLI: Array) -> Array:
        """[B, L, H x K] -> [B, L, H, K]."""
        return x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width)
