"""The attention sub-layer: projections, one call into `attend`, the output projection."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.patterns import Window
from efficient_attention.attention.text_form import parse_mechanism
from efficient_attention.modules.config import LayerConfig
from efficient_attention.modules.distances import DistanceTerm
from efficient_attention.modules.global_tokens import GlobalTokens, attend_with_global
from efficient_attention.modules.parameters import linear
from efficient_attention.modules.positions import rotate


class LayerMemory(NamedTuple):
    """What a layer read before this segment, [B, M, D], and the segment of each token [B, M]; 0 = nothing."""

    states_BMD: Array
    segments_BM: Array

    def options(self, segments_BL: Array) -> dict[str, Any]:
        """The segments and places of queries and keys, as `attend` takes them."""
        before, new = self.segments_BM.shape[1], segments_BL.shape[1]
        places = np.arange(before + new, dtype=np.int32)[None]
        key_segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        return {'key_segments': key_segments, 'query_positions': places[:, before:], 'key_positions': places}


class SelfAttention(nnx.Module):
    """Multi-head self-attention [B, L, D] -> [B, L, D] with any mechanism (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        inner, use_bias = config.heads * config.head_width, config.attention_bias
        self.config = config
        self.query = linear(config, config.width, inner, rngs, use_bias=use_bias)
        self.key = None if config.shared_qk else linear(config, config.width, inner, rngs, use_bias=use_bias)
        self.value = linear(config, config.width, inner, rngs, use_bias=use_bias)
        self.out = linear(config, inner, config.width, rngs, use_bias=use_bias)
        self.global_projections = GlobalProjections(config, rngs=rngs) if config.global_tokens else None
        self.distances = DistanceTerm(config, rngs=rngs) if config.relative == 'transformer_xl' else None

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
        memory: LayerMemory | None = None,
    ) -> Array:
        """Attends within segments, to `memory` too.

        Args:
            x_BLD: the input.
            segments_BL: 0 = padding, 1, 2, ... = packed examples.
            positions_BL: for rotary positions alone; patterns go by the place in the row.
            rng: a key, or one a row; turns dropout of the weights on.
            mechanism: by default the config's first.
            mechanism_rng: a key for mechanisms that draw at random.
            is_global_BL: tokens that read all and are read by all, with projections of their own; at most
                `config.global_tokens` a row.
            bias: added to the logits: an array or a function of positions, as `attend` takes it; the shared `Biases`
                of relative 'transformer_xl'.
            memory: what this layer read before: keys and values come from it and then from `x`; rotary positions then
                count from its first token.
        """
        config = self.config
        mechanism = parse_mechanism(config.attention.split(';')[0]) if mechanism is None else mechanism
        q_BLHK, k_BLHK, v_BLHK = self.project(x_BLD, positions_BL, mechanism, memory)
        options: dict[str, Any] = {
            'dropout_rate': 0.0 if rng is None else config.attention_dropout_rate,
            'rng': mechanism_rng,
            'dropout_rng': rng,
            'backend': config.attention_backend,
        }
        if is_global_BL is None:
            options |= {'query_segments': segments_BL, 'key_segments': segments_BL}
            if memory is not None:
                options |= memory.options(segments_BL)
                mechanism = same_length(mechanism, memory) if config.same_length else mechanism
            if self.distances is not None:
                q_BLHK, options['relative'] = self.distances(q_BLHK, k_BLHK.shape[1], bias)
            else:
                options['bias'] = bias
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

    def project(
        self, x_BLD: Array, positions_BL: Array, mechanism: Mechanism, memory: LayerMemory | None = None
    ) -> tuple[Array, Array, Array]:
        """Query [B, L, H, K], key and value [B, M, H, K], rotated where the config says so: what a cache keeps.

        M is L, and with memory so much more.
        """
        read_BMD, key_positions_BM = x_BLD, positions_BL
        if memory is not None:
            read_BMD = jnp.concatenate([memory.states_BMD.astype(x_BLD.dtype), x_BLD], axis=1)
            key_positions_BM = jnp.broadcast_to(jnp.arange(read_BMD.shape[1]), read_BMD.shape[:2])
            positions_BL = key_positions_BM[:, -x_BLD.shape[1] :]
        q_BLHK, v_BMHK = self.split_heads(self.query(x_BLD)), self.split_heads(self.value(read_BMD))
        if self.key is not None:
            k_BMHK = self.split_heads(self.key(read_BMD))
        else:
            k_BMHK = q_BLHK if memory is None else self.split_heads(self.query(read_BMD))
        if self.config.rotary:
            is_one = k_BMHK is q_BLHK
            q_BLHK = rotate(q_BLHK, positions_BL)
            k_BMHK = q_BLHK if is_one else rotate(k_BMHK, key_positions_BM)
        if self.key is None and not mechanism.normalises_keys:
            k_BMHK = unit_keys(k_BMHK)
        q_BLHK = q_BLHK * self.config.query_scale if self.config.query_scale != 1.0 else q_BLHK
        return q_BLHK, k_BMHK, v_BMHK

    def join_heads(self, out_BLHK: Array) -> Array:
        """The output projection of the heads' results, [B, L, H, K] -> [B, L, D]."""
        return self.out(jax.lax.collapse(out_BLHK, 2))

    def split_heads(self, x_BLI: Array) -> Array:
        """[B, L, H x K] -> [B, L, H, K]."""
        return x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width)


def same_length(mechanism: Mechanism, memory: LayerMemory) -> Mechanism:
    """The mechanism with as many keys for each query as the memory is long, itself among them.

    So the released code of Transformer-XL evaluates (`same_length`): no query of a segment knows more than another.
    """
    length = memory.segments_BM.shape[1]
    if not length:
        return mechanism
    return mechanism.within(Window(length - 1))


class GlobalProjections(nnx.Module):
    """The query, key and value projections of global tokens (Beltagy et al. 2020, arXiv 2004.05150, section 3.1)."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        inner, use_bias = config.heads * config.head_width, config.attention_bias
        self.query = linear(config, config.width, inner, rngs, use_bias=use_bias)
        self.key = linear(config, config.width, inner, rngs, use_bias=use_bias)
        self.value = linear(config, config.width, inner, rngs, use_bias=use_bias)

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
