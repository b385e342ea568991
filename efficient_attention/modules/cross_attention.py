"""The cross-attention module: queries from a layer's input attend to another sequence, such as an encoder's output."""

import dataclasses
import math
from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with_options
from efficient_attention.attention.choice_log import calling_from, current_caller
from efficient_attention.attention.cross_attention_cache import (
    CrossAttentionKeys,
    KeySequence,
    NewQueries,
    attend_cross_cached,
    cache_cross_keys,
)
from efficient_attention.attention.features.cross_attention_sums import CrossAttentionSums
from efficient_attention.attention.foreign_keywords import refuse_foreign_keywords
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.request import AnySegments, CallOptions
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import DRAW_STREAM, AttentionOperands, AttentionProjections
from efficient_attention.modules.layer_constructors import kernel_init, linear
from efficient_attention.modules.layer_context import (
    Context,
    ContextOptions,
    EncodedSource,
    fold_into_key,
    make_context,
    require_source,
)
from efficient_attention.modules.learned_operands import make_learned
from efficient_attention.modules.low_rank import with_low_rank

CROSS_STREAM = 0x63726F73  # constant folded into the PRNG key with which cross-attention samples


class CrossAttention(AttentionProjections):
    """Multi-head attention to the encoded source, [B, L, D] -> [B, L, D], by the mechanism that the config field
    `cross_attention` names.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config, mechanism = config, config.cross_mechanism
        self.make_projections(mechanism, has_key=True, rngs=rngs)
        self.make_scores(rngs)
        self.centres = LocalAttentionCentres(config, rngs=rngs) if mechanism.requirements.centres else None
        self.learned = make_learned(config, mechanism, rngs=rngs)
        with_low_rank(self, config, ('query', 'key', 'value', 'out'), rngs)

    @refuse_foreign_keywords
    def __call__(
        self, x_BLD: Array, segments_BL: AnySegments, positions_BL: Array, **options: Unpack[ContextOptions]
    ) -> Array:
        """Returns the attention output [B, L, D], without the operands that `run` also returns.

        `segments_BL` is an array or `Lengths`. The other arguments are the fields of `Context`.
        """
        return self.run(x_BLD, make_context(segments_BL, positions_BL, **options))[0]

    def run(self, x_BLD: Array, context: Context) -> tuple[Array, AttentionOperands]:
        """Returns the output of the attention to the encoded source, and the queries and keys.

        A query reads only source vectors with its segment number.

        `context.rng` enables dropout of the weights; `context.mechanism_rng` is the layer's key.
        """
        other, mechanism = require_source(context.other, 'cross_attention'), self.config.cross_mechanism
        q_BLHK, keys = self.scaled_query(x_BLD), self.project_source(other)
        operands = self.attention_operands(x_BLD, q_BLHK, keys.key)
        options = operands.add_to_options(cross_options(mechanism, context, self.attend_options(context.rng)))
        if mechanism.randomness.in_training and context.rng is not None:
            options = dataclasses.replace(options, rng=fold_into_key(context.rng, DRAW_STREAM), return_lse=True)
        with calling_from(current_caller()._replace(kind='cross-attention')):
            out_BLHK, drawn_BHL = attend_with_options(q_BLHK, keys.key, keys.value, mechanism, options)
        return self.merge_and_project_heads(out_BLHK), operands._replace(drawn_BHL=drawn_BHL)

    def source_keys_for_decoding(
        self, other: EncodedSource, mechanism_rng: Array | None = None
    ) -> CrossAttentionKeys | CrossAttentionSums:
        """Returns the cross-attention keys of the encoded source for decoding; they are computed once per source.

        `mechanism_rng` is the layer's key.
        """
        learned = None if self.learned is None else self.learned()
        return cache_cross_keys(
            self.config.cross_mechanism, self.project_source(other), cross_rng(mechanism_rng), learned
        )

    def run_with_cache(
        self, x_BnD: Array, context: Context, fixed: CrossAttentionKeys | CrossAttentionSums
    ) -> tuple[Array, AttentionOperands | None]:
        """Returns the attention output for new tokens in incremental decoding, and the operands; `fixed` holds the
        source's keys from `source_keys_for_decoding`.

        The new tokens may have as many rows as the cached keys, or a multiple. The queries and keys are None if the
        cache holds only sums over the keys.
        """
        q_BnHK, mechanism, rng = self.scaled_query(x_BnD), self.config.cross_mechanism, context.rng
        keys = None if isinstance(fixed, CrossAttentionSums) else fixed.key_BGMK.swapaxes(1, 2)
        operands = None if keys is None else self.attention_operands(x_BnD, q_BnHK, keys)
        centres_BnH, additive_HK = (None, None) if operands is None else (operands.centres_BLH, operands.additive_HK)
        new = NewQueries(q_BnHK, context.segments_BL, context.positions_BL, centres_BnH)
        learned = None if self.learned is None else self.learned()
        options = dataclasses.replace(self.attend_options(rng), additive=additive_HK, learned=learned)
        if mechanism.randomness.in_training and rng is not None:
            options = dataclasses.replace(options, rng=fold_into_key(rng, DRAW_STREAM), return_lse=True)
        out_BnHK, drawn_BHn = attend_cross_cached(mechanism, fixed, new, options)
        return self.merge_and_project_heads(out_BnHK), None if operands is None else operands._replace(
            drawn_BHL=drawn_BHn
        )

    def attention_operands(self, x_BLD: Array, q_BLHK: Array, k_BMHK: Array) -> AttentionOperands:
        """Returns all operands of the attention scores: queries, keys, window centres, score vector and learned
        arrays.
        """
        centres_BLH = None if self.centres is None else self.centres(x_BLD)
        learned = None if self.learned is None else self.learned()
        return AttentionOperands(q_BLHK, k_BMHK, None, self.additive_vector(), centres_BLH, learned=learned)

    def scaled_query(self, x_BLD: Array) -> Array:
        """Returns the scaled queries [B, L, H, K] of the layer's input; no position encoding is applied."""
        q_BLHK = self.project_query(x_BLD)
        return q_BLHK if self.config.scaled_logits else q_BLHK * self.config.logit_scale

    def project_source(self, other: EncodedSource) -> KeySequence:
        """Returns the keys and values [B, M, H, K] of the encoded source; no position encoding is applied."""
        key_BMHK = self.project_keys(other.states_BMD, other.positions_BM)
        assert key_BMHK is not None
        value_BMHK = self.split_heads(self.value(other.states_BMD))
        return KeySequence(key_BMHK, value_BMHK, other.segments_BM, other.positions_BM)


def cross_options(mechanism: Mechanism, context: Context, options: CallOptions) -> CallOptions:
    """Returns the options of `attend` for cross-attention: segments and positions of queries and source, and the
    sampling key.

    Positions are omitted if the mechanism does not compare positions, because some backends support no position arrays.
    """
    other = require_source(context.other, 'cross_attention')
    rng = cross_rng(context.mechanism_rng) if mechanism.randomness.always else None
    options = dataclasses.replace(
        options, rng=rng, query_segments=context.attend_segments, key_segments=other.attend_segments
    )
    if not mechanism.requirements.positions:
        return options
    return dataclasses.replace(options, query_positions=context.positions_BL, key_positions=other.positions_BM)


def cross_rng(mechanism_rng: Array | None) -> Array | None:
    """Returns the PRNG key with which a layer's cross-attention samples; it differs from the key of the layer's
    self-attention.
    """
    return fold_into_key(mechanism_rng, CROSS_STREAM)


class LocalAttentionCentres(nnx.Module):
    """Predicts the window centre of each query in local cross-attention, sigmoid(v tanh(W h)), [B, L, D] -> [B, L, H].

    The centre is a share of the source's length. Source: Luong et al. 2015, arXiv 1508.04025, equation 9; here each
    head has a separate W and v.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.hidden = linear(config, config.width, config.heads * config.head_width, rngs, axes='DI', use_bias=False)
        draw = kernel_init(config, 1.0 / math.sqrt(config.head_width))
        self.vector = nnx.Param(draw(rngs.params(), (config.heads, config.head_width), jnp.float32))

    def __call__(self, x_BLD: Array) -> Array:
        """Returns the window centre of each query and head, as a share of the source's length, float32 in (0, 1)."""
        hidden_BLI = jnp.tanh(self.hidden(x_BLD).astype(jnp.float32))
        hidden_BLHK = hidden_BLI.reshape(*x_BLD.shape[:2], self.config.heads, self.config.head_width)
        vector_11HK = jnp.asarray(self.vector[...])[None, None]
        return jax.nn.sigmoid((hidden_BLHK * vector_11HK).sum(axis=-1))
