"""What self-attention and cross-attention share: projections to heads and back, and the learned parts of scores."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import spread
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import Options
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.learned import LearnedOperands
from efficient_attention.modules.parameters import embedding, kernel_init, linear

DRAW_STREAM = 0x64726177  # folded into a layer's key of dropout for what a mechanism draws in training alone


class AttentionOperands(NamedTuple):
    """What an attention's weights come from, as `attention_weights` takes it."""

    query_BLHK: Array
    key_BMHK: Array
    relative: Relative | None = None
    additive_HK: Array | None = None
    centres_BLH: Array | None = None
    # log-probabilities of the keys that queries drew, in training
    drawn_BHL: Array | None = None
    value_BMHK: Array | None = None  # of a self-attention; weights do not depend on it
    learned: dict[str, Array] | None = None  # by name

    def beside(self, options: Options) -> Options:
        """The options of `attend` with what stands here beside queries and keys."""
        return dataclasses.replace(
            options,
            relative=self.relative,
            additive=self.additive_HK,
            centres=self.centres_BLH,
            learned=self.learned,
        )


class Projections(nnx.Module):
    """The learned parts of an attention, abstract: `Attention` and `CrossAttention` compute with them."""

    config: LayerConfig
    learned: LearnedOperands | None

    def make_projections(self, mechanism: Mechanism, *, has_key: bool, rngs: nnx.Rngs) -> None:
        """Makes the projections to queries, keys and values, those that the mechanism reads, and that of the output."""
        config = self.config
        inner, use_bias = config.heads * config.head_width, config.attention_bias
        has_query = mechanism.reads.queries
        self.query = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias) if has_query else None
        if self.query is not None and config.kernel_init == 'fan_in' and not config.scaled_logits:
            self.query.kernel[...] = self.query.kernel[...] / config.logit_scale
        has_key = has_key and config.score != 'location' and mechanism.reads.keys
        self.key = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias) if has_key else None
        self.value = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)
        self.out = linear(config, inner, config.width, rngs, axes='ID', use_bias=use_bias)

    def make_scores(self, rngs: nnx.Rngs) -> None:
        """Makes what scores other than q k learn."""
        config = self.config
        self.general = General(config, rngs=rngs) if config.score == 'general' else None
        self.additive = Additive(config, rngs=rngs) if config.score == 'additive' else None
        self.location = Location(config, rngs=rngs) if config.score == 'location' else None

    def query_of(self, x_BLD: Array) -> Array:
        """The queries [B, L, H, K] as they meet keys: those of 'general' scores times their matrix."""
        assert self.query is not None  # the mechanism reads queries
        q_BLHK = self.split_heads(self.query(x_BLD))
        return q_BLHK if self.general is None else self.general(q_BLHK)

    def keys_of(self, read_BMD: Array, positions_BM: Array | None) -> Array | None:
        """The keys [B, M, H, K] of what is read or of its positions, by default 0, 1, ...; None if queries are keys."""
        if self.location is not None:
            if positions_BM is None:
                positions_BM = jnp.broadcast_to(jnp.arange(read_BMD.shape[1]), read_BMD.shape[:2])
            return self.split_heads(self.location(positions_BM))
        return None if self.key is None else self.split_heads(self.key(read_BMD))

    def additive_vector(self) -> Array | None:
        """v [H, K] of additive scores; None of others."""
        return None if self.additive is None else self.additive()

    def options(self, rng: Array | None) -> Options:
        """The options of `attend` that follow from the config; `rng` turns dropout of the weights on."""
        rate = 0.0 if rng is None else self.config.attention_dropout_rate
        return Options(dropout_rate=rate, dropout_rng=rng, backend=self.config.attention_backend)

    def split_heads(self, x_BLI: Array) -> Array:
        """[B, L, H x K] -> [B, L, H, K]."""
        return spread(x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width), 'BLHK')

    def join_heads(self, out_BLHK: Array) -> Array:
        """The output projection of the heads' results, [B, L, H, K] -> [B, L, D]."""
        return spread(self.out(jax.lax.collapse(spread(out_BLHK, 'BLHK'), 2)), 'BLD')


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
