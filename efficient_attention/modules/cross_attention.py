"""Cross-attention: queries of a layer's input read another sequence, such as an encoder's output."""

import dataclasses
import math
from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with
from efficient_attention.attention.features.fixed_sums import FixedSums
from efficient_attention.attention.fixed_keys import FixedKeys, KeySequence, NewQueries, attend_fixed, fix_keys
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.request import CallOptions
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import DRAW_STREAM, AttentionOperands, Projections
from efficient_attention.modules.context import Context, ContextOptions, OtherSequence, fold, given
from efficient_attention.modules.learned import make_learned
from efficient_attention.modules.low_rank import with_low_rank
from efficient_attention.modules.parameters import kernel_init, linear

CROSS_STREAM = 0x63726F73  # folded into a layer's key for what its cross-attention draws


class CrossAttention(Projections):
    """Multi-head attention to another sequence [B, L, D] -> [B, L, D], by the config's `cross_attention`."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config, mechanism = config, config.cross_mechanism
        self.make_projections(mechanism, has_key=True, rngs=rngs)
        self.make_scores(rngs)
        self.centres = Centres(config, rngs=rngs) if mechanism.needs.centres else None
        self.learned = make_learned(config, mechanism, rngs=rngs)
        with_low_rank(self, config, ('query', 'key', 'value', 'out'), rngs)

    def __call__(
        self, x_BLD: Array, segments_BL: Array, positions_BL: Array, **options: Unpack[ContextOptions]
    ) -> Array:
        """The output of `run`; the other arguments are the fields of its `Context`."""
        return self.run(x_BLD, Context(segments_BL, positions_BL, **options))[0]

    def run(self, x_BLD: Array, context: Context) -> tuple[Array, AttentionOperands]:
        """Attends to `context.other` within segments; also returns the queries and keys.

        `context.rng` turns dropout of the weights on; `context.mechanism_rng` is the layer's.
        """
        other, mechanism = given(context.other, 'cross_attention'), self.config.cross_mechanism
        q_BLHK, keys = self.scaled_query(x_BLD), self.keys(other)
        operands = self.operands(x_BLD, q_BLHK, keys.key)
        options = operands.beside(cross_options(mechanism, context, self.options(context.rng)))
        if mechanism.draws.in_training and context.rng is not None:
            options = dataclasses.replace(options, rng=fold(context.rng, DRAW_STREAM), return_lse=True)
        out_BLHK, drawn_BHL = attend_with(q_BLHK, keys.key, keys.value, mechanism, options)
        return self.join_heads(out_BLHK), operands._replace(drawn_BHL=drawn_BHL)

    def fixed_keys(self, other: OtherSequence, mechanism_rng: Array | None = None) -> FixedKeys | FixedSums:
        """What decoding keeps of another sequence, computed once; `mechanism_rng` is the layer's."""
        learned = None if self.learned is None else self.learned()
        return fix_keys(self.config.cross_mechanism, self.keys(other), cross_rng(mechanism_rng), learned)

    def go_on(
        self, x_BnD: Array, context: Context, fixed: FixedKeys | FixedSums
    ) -> tuple[Array, AttentionOperands | None]:
        """`run` for new tokens, from what `fixed_keys` gave, for as many rows or a multiple of them.

        Also the queries and keys; None where sums are all that is left of the keys.
        """
        q_BnHK, mechanism, rng = self.scaled_query(x_BnD), self.config.cross_mechanism, context.rng
        keys = None if isinstance(fixed, FixedSums) else fixed.key_BGMK.swapaxes(1, 2)
        operands = None if keys is None else self.operands(x_BnD, q_BnHK, keys)
        centres_BnH, additive_HK = (None, None) if operands is None else (operands.centres_BLH, operands.additive_HK)
        new = NewQueries(q_BnHK, context.segments_BL, context.positions_BL, centres_BnH)
        learned = None if self.learned is None else self.learned()
        options = dataclasses.replace(self.options(rng), additive=additive_HK, learned=learned)
        if mechanism.draws.in_training and rng is not None:
            options = dataclasses.replace(options, rng=fold(rng, DRAW_STREAM), return_lse=True)
        out_BnHK, drawn_BHn = attend_fixed(mechanism, fixed, new, options)
        return self.join_heads(out_BnHK), None if operands is None else operands._replace(drawn_BHL=drawn_BHn)

    def operands(self, x_BLD: Array, q_BLHK: Array, k_BMHK: Array) -> AttentionOperands:
        """Queries and keys with what goes beside them."""
        centres_BLH = None if self.centres is None else self.centres(x_BLD)
        learned = None if self.learned is None else self.learned()
        return AttentionOperands(q_BLHK, k_BMHK, None, self.additive_vector(), centres_BLH, learned=learned)

    def scaled_query(self, x_BLD: Array) -> Array:
        """The queries [B, L, H, K], without positions."""
        q_BLHK = self.query_of(x_BLD)
        return q_BLHK if self.config.scaled_logits else q_BLHK * self.config.logit_scale

    def keys(self, other: OtherSequence) -> KeySequence:
        """The keys and values [B, M, H, K] of another sequence, without positions."""
        key_BMHK = self.keys_of(other.states_BMD, other.positions_BM)
        assert key_BMHK is not None
        value_BMHK = self.split_heads(self.value(other.states_BMD))
        return KeySequence(key_BMHK, value_BMHK, other.segments_BM, other.positions_BM)


def cross_options(mechanism: Mechanism, context: Context, options: CallOptions) -> CallOptions:
    """The options with what says which token of a layer's input reads which of the other sequence.

    Positions are left out where the mechanism compares none, as those of arrays hinder some backends.
    """
    other = given(context.other, 'cross_attention')
    rng = cross_rng(context.mechanism_rng) if mechanism.draws.always else None
    options = dataclasses.replace(options, rng=rng, query_segments=context.segments_BL, key_segments=other.segments_BM)
    if not mechanism.needs.positions:
        return options
    return dataclasses.replace(options, query_positions=context.positions_BL, key_positions=other.positions_BM)


def cross_rng(mechanism_rng: Array | None) -> Array | None:
    """The key of what a layer's cross-attention draws, apart from what its self-attention draws."""
    return fold(mechanism_rng, CROSS_STREAM)


class Centres(nnx.Module):
    """Where each query reads, as a share of what there is to read: sigmoid(v tanh(W h)), [B, L, D] -> [B, L, H].

    Source: Luong et al. 2015, arXiv 1508.04025, equation 9; here W and v are those of each head.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.hidden = linear(config, config.width, config.heads * config.head_width, rngs, axes='DI', use_bias=False)
        draw = kernel_init(config, 1.0 / math.sqrt(config.head_width))
        self.vector = nnx.Param(draw(rngs.params(), (config.heads, config.head_width), jnp.float32))

    def __call__(self, x_BLD: Array) -> Array:
        """The shares, float32 in (0, 1)."""
        hidden_BLI = jnp.tanh(self.hidden(x_BLD).astype(jnp.float32))
        hidden_BLHK = hidden_BLI.reshape(*x_BLD.shape[:2], self.config.heads, self.config.head_width)
        vector_11HK = jnp.asarray(self.vector[...])[None, None]
        return jax.nn.sigmoid((hidden_BLHK * vector_11HK).sum(axis=-1))
