"""The attention sub-layer: projections, one call into `attend`, the output projection."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend
from efficient_attention.attention.mechanisms import Mechanism
from efficient_attention.attention.text_form import parse_mechanism
from efficient_attention.modules.config import LayerConfig
from efficient_attention.modules.global_tokens import GlobalTokens, attend_with_global
from efficient_attention.modules.parameters import linear
from efficient_attention.modules.positions import rotate


class SelfAttention(nnx.Module):
    """Multi-head self-attention [B, L, D] -> [B, L, D] with any mechanism (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        inner = config.heads * config.head_width
        self.config = config
        self.query = linear(config, config.width, inner, rngs)
        self.key = None if config.shared_qk else linear(config, config.width, inner, rngs)
        self.value = linear(config, config.width, inner, rngs)
        self.out = linear(config, inner, config.width, rngs)
        self.global_projections = GlobalProjections(config, rngs=rngs) if config.global_tokens else None

    def __call__(
        self,
        x_BLD: Array,
        segments_BL: Array,
        positions_BL: Array,
        *,
        rng: Array | None = None,
        mechanism: Mechanism | None = None,
        mechanism_rng: Array | None = None,
        is_global_BL: Array | None = None,
        bias: Any = None,
    ) -> Array:
        """Attends within segments.

        Args:
            x_BLD: the input.
            segments_BL: 0 = padding, 1, 2, ... = packed examples.
            positions_BL: for rotary positions alone; patterns go by the place in the row.
            rng: a key, or one a row; turns dropout of the weights on.
            mechanism: by default the config's first.
            mechanism_rng: a key for mechanisms that draw at random.
            is_global_BL: tokens that read all and are read by all, with projections of their own; at most
                `config.global_tokens` a row.
            bias: added to the logits: an array or a function of positions, as `attend` takes it.
        """
        config = self.config
        mechanism = parse_mechanism(config.attention.split(';')[0]) if mechanism is None else mechanism
        q_BLHK, k_BLHK, v_BLHK = self.project(x_BLD, positions_BL, mechanism)
        options: dict[str, Any] = {
            'dropout_rate': 0.0 if rng is None else config.attention_dropout_rate,
            'rng': mechanism_rng,
            'dropout_rng': rng,
            'backend': config.attention_backend,
        }
        if is_global_BL is None:
            options |= {'bias': bias, 'query_segments': segments_BL, 'key_segments': segments_BL}
            out_BLHK = attend(q_BLHK, k_BLHK, v_BLHK, mechanism, **options)
        else:
            if bias is not None:
                raise ValueError('is_global and bias do not go together')
            if self.global_projections is None:
                raise ValueError('is_global needs model.global_tokens, the most global tokens of a row, above 0')
            own_q, own_k, own_v = (self.split_heads(x) for x in self.global_projections(x_BLD))
            tokens = GlobalTokens(is_global_BL, own_q, own_k, own_v, config.global_tokens)
            out_BLHK = attend_with_global(q_BLHK, k_BLHK, v_BLHK, tokens, mechanism, segments_BL, options)
        return self.join_heads(out_BLHK)

    def project(self, x_BLD: Array, positions_BL: Array, mechanism: Mechanism) -> tuple[Array, Array, Array]:
        """Query, key and value [B, L, H, K], rotated where the config says so: what a cache keeps."""
        q_BLHK, v_BLHK = self.split_heads(self.query(x_BLD)), self.split_heads(self.value(x_BLD))
        k_BLHK = q_BLHK if self.key is None else self.split_heads(self.key(x_BLD))
        if self.config.rotary:
            q_BLHK = rotate(q_BLHK, positions_BL)
            k_BLHK = q_BLHK if self.key is None else rotate(k_BLHK, positions_BL)
        if self.key is None and not mechanism.normalises_keys:
            k_BLHK = unit_keys(k_BLHK)
        return q_BLHK, k_BLHK, v_BLHK

    def join_heads(self, out_BLHK: Array) -> Array:
        """The output projection of the heads' results, [B, L, H, K] -> [B, L, D]."""
        return self.out(jax.lax.collapse(out_BLHK, 2))

    def split_heads(self, x_BLI: Array) -> Array:
        """[B, L, H x K] -> [B, L, H, K]."""
        return x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width)


class GlobalProjections(nnx.Module):
    """The query, key and value projections of global tokens (Beltagy et al. 2020, arXiv 2004.05150, section 3.1)."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        inner = config.heads * config.head_width
        self.query = linear(config, config.width, inner, rngs)
        self.key = linear(config, config.width, inner, rngs)
        self.value = linear(config, config.width, inner, rngs)

    def __call__(self, x_BLD: Array) -> tuple[Array, Array, Array]:
        """Query, key and value [B, L, H x K]."""
        return self.query(x_BLD), self.key(x_BLD), self.value(x_BLD)


def unit_keys(q_BLHK: Array) -> Array:
    """Keys of shared-QK attention for softmax over q k^T / sqrt(K): unit vectors times sqrt(K), as LSH's are.

    Source: Kitaev et al. 2020, arXiv 2001.04451, section 2, k = q / |q|.
    """
    q32 = q_BLHK.astype(jnp.float32)
    norm = jnp.sqrt(jnp.square(q32).sum(axis=-1, keepdims=True) + 1e-12)
    return (q32 / norm * math.sqrt(q_BLHK.shape[-1])).astype(q_BLHK.dtype)
