"""The attention sub-layer: projections, one call into `attend`, the output projection."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with
from efficient_attention.attention.device_mesh import spread
from efficient_attention.attention.features.fixed_sums import FixedSums
from efficient_attention.attention.fixed_keys import FixedKeys, KeySequence, NewQueries, attend_fixed, fix_keys
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Window
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import Options
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.context import Context, LayerMemory, OtherSequence, fold
from efficient_attention.modules.distances import DistanceTerm
from efficient_attention.modules.global_tokens import GlobalTokens, attend_with_global
from efficient_attention.modules.learned import learned_arrays, make_learned
from efficient_attention.modules.low_rank import with_low_rank
from efficient_attention.modules.parameters import linear
from efficient_attention.modules.positions import rotate
from efficient_attention.modules.scores import Additive, Centres, General, Location

CROSS_STREAM = 0x63726F73  # folded into a layer's key for what its cross-attention draws
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


class Attention(nnx.Module):
    """Multi-head attention [B, L, D] -> [B, L, D] with any mechanism (Vaswani et al. 2017, section 3.2.2).

    It reads its input, or with `is_cross` another sequence, by `cross_attention` and without positions.
    """

    def __init__(self, config: LayerConfig, *, is_cross: bool = False, rngs: nnx.Rngs) -> None:
        inner, use_bias = config.heads * config.head_width, config.attention_bias
        self.config = config
        mechanism = config.cross_mechanism if is_cross else config.mechanisms[0]
        has_query = mechanism.reads_queries
        self.query = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias) if has_query else None
        if self.query is not None and config.kernel_init == 'fan_in' and not config.scaled_logits:
            self.query.kernel[...] = self.query.kernel[...] / config.logit_scale
        has_key = (is_cross or not config.shared_qk) and config.score != 'location' and mechanism.reads_keys
        self.key = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias) if has_key else None
        self.value = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)
        self.out = linear(config, inner, config.width, rngs, axes='ID', use_bias=use_bias)
        has_global, has_distances = config.global_tokens and not is_cross, config.relative == 'transformer_xl'
        self.global_projections = GlobalProjections(config, rngs=rngs) if has_global else None
        self.distances = DistanceTerm(config, rngs=rngs) if has_distances and not is_cross else None
        self.general = General(config, rngs=rngs) if config.score == 'general' else None
        self.additive = Additive(config, rngs=rngs) if config.score == 'additive' else None
        self.location = Location(config, rngs=rngs) if config.score == 'location' else None
        has_centres = is_cross and config.cross_mechanism.needs_centres
        self.centres = Centres(config, rngs=rngs) if has_centres else None
        self.learned = make_learned(config, mechanism, rngs=rngs)
        with_low_rank(self, config, ('query', 'key', 'value', 'out'), rngs)

    def __call__(
        self,
        x_BLD: Array,
        segments_BL: Array,
        positions_BL: Array,
        *,
        mechanism: Mechanism | None = None,
        **context: Any,
    ) -> Array:
        """The output of `self_attention`; the other arguments are the fields of its `Context`."""
        return self.self_attention(x_BLD, Context(segments_BL, positions_BL, **context), mechanism)[0]

    def self_attention(
        self, x_BLD: Array, context: Context, mechanism: Mechanism | None = None
    ) -> tuple[Array, AttentionOperands]:
        """Attends within segments, to the memory too; also returns the queries and keys, as they were compared.

        Args:
            x_BLD: the input.
            context: what it reads beside it; `rng` turns dropout of the weights on. With global tokens the queries and
                keys that are returned are those of the other tokens.
            mechanism: by default the config's first.
        """
        config, segments_BL, memory = self.config, context.segments_BL, context.memory
        assert memory is None or isinstance(memory, LayerMemory)
        mechanism = parse_mechanism(config.attention.split(';')[0]) if mechanism is None else mechanism
        q_BLHK, k_BMHK, v_BMHK = self.project(x_BLD, context.positions_BL, mechanism, memory)
        draws = fold(context.rng, DRAW_STREAM) if mechanism.has_training_noise else context.mechanism_rng
        options = dataclasses.replace(self.options(context.rng), rng=draws)
        if context.is_global_BL is not None:
            if context.bias is not None or context.distance_biases is not None:
                raise ValueError('is_global and bias do not go together')
            tokens = self.global_tokens(x_BLD, context.is_global_BL)
            out_BLHK = attend_with_global(q_BLHK, k_BMHK, v_BMHK, tokens, mechanism, segments_BL, options)
            return self.join_heads(out_BLHK), AttentionOperands(q_BLHK, k_BMHK, value_BMHK=v_BMHK)
        options = dataclasses.replace(options, bias=context.bias, query_segments=segments_BL, key_segments=segments_BL)
        if memory is not None:
            options = memory.before(options, segments_BL)
            mechanism = same_length(mechanism, memory) if config.same_length else mechanism
        relative = None
        if self.distances is not None:
            q_BLHK, relative = self.distances(q_BLHK, k_BMHK.shape[1], context.distance_biases)
        learned = learned_arrays(self.learned, context.learned)
        operands = AttentionOperands(
            q_BLHK, k_BMHK, relative, self.additive_vector(), value_BMHK=v_BMHK, learned=learned
        )
        out_BLHK, _ = attend_with(q_BLHK, k_BMHK, v_BMHK, mechanism, operands.beside(options))
        return self.join_heads(out_BLHK), operands

    def options(self, rng: Array | None) -> Options:
        """The options of `attend` that follow from the config; `rng` turns dropout of the weights on."""
        rate = 0.0 if rng is None else self.config.attention_dropout_rate
        return Options(dropout_rate=rate, dropout_rng=rng, backend=self.config.attention_backend)

    def additive_vector(self) -> Array | None:
        """v [H, K] of additive scores; None of others."""
        return None if self.additive is None else self.additive()

    def global_tokens(self, x_BLD: Array, is_global_BL: Array) -> GlobalTokens:
        """The global tokens through their projections; raises ValueError where the config has none."""
        if self.global_projections is None:
            raise ValueError('is_global needs model.global_tokens, the most global tokens of a row, above 0')
        q_BLHK, k_BLHK, v_BLHK = (self.split_heads(x_BLI) for x_BLI in self.global_projections(x_BLD))
        return GlobalTokens(is_global_BL, q_BLHK, k_BLHK, v_BLHK, self.config.global_tokens)

    def cross(self, x_BLD: Array, context: Context, other: OtherSequence) -> tuple[Array, AttentionOperands]:
        """Attends to another sequence, within segments; also returns the queries and keys.

        `context.rng` turns dropout of the weights on; `context.mechanism_rng` is the layer's.
        """
        q_BLHK, keys = self.cross_query(x_BLD), self.cross_keys(other)
        mechanism = self.config.cross_mechanism
        operands = self.cross_operands(x_BLD, q_BLHK, keys.key)
        options = operands.beside(cross_options(mechanism, context, other, self.options(context.rng)))
        if mechanism.draws_in_training and context.rng is not None:
            options = dataclasses.replace(options, rng=fold(context.rng, DRAW_STREAM), return_lse=True)
        out_BLHK, drawn_BHL = attend_with(q_BLHK, keys.key, keys.value, mechanism, options)
        return self.join_heads(out_BLHK), operands._replace(drawn_BHL=drawn_BHL)

    def cross_operands(self, x_BLD: Array, q_BLHK: Array, k_BMHK: Array) -> AttentionOperands:
        """Queries and keys of another sequence with what goes beside them."""
        centres_BLH = None if self.centres is None else self.centres(x_BLD)
        learned = learned_arrays(self.learned, None)
        return AttentionOperands(q_BLHK, k_BMHK, None, self.additive_vector(), centres_BLH, learned=learned)

    def cross_query(self, x_BLD: Array) -> Array:
        """The queries [B, L, H, K] to another sequence, without positions."""
        q_BLHK = self.general_query(self.split_heads(of_module(self.query)(x_BLD)))
        return q_BLHK if self.config.scaled_logits else q_BLHK * self.config.logit_scale

    def general_query(self, q_BLHK: Array) -> Array:
        """The queries as they meet keys: those of 'general' scores times their matrix, others as they are."""
        return q_BLHK if self.general is None else self.general(q_BLHK)

    def cross_keys(self, other: OtherSequence) -> KeySequence:
        """The keys and values [B, M, H, K] of another sequence, without positions."""
        key_BMHK = self.keys_of(other.states_BMD, other.positions_BM)
        assert key_BMHK is not None
        value_BMHK = self.split_heads(self.value(other.states_BMD))
        return KeySequence(key_BMHK, value_BMHK, other.segments_BM, other.positions_BM)

    def keys_of(self, read_BMD: Array, positions_BM: Array | None) -> Array | None:
        """The keys [B, M, H, K] of what is read or of its positions, by default 0, 1, ...; None if queries are keys."""
        if self.location is not None:
            if positions_BM is None:
                positions_BM = jnp.broadcast_to(jnp.arange(read_BMD.shape[1]), read_BMD.shape[:2])
            return self.split_heads(self.location(positions_BM))
        return None if self.key is None else self.split_heads(self.key(read_BMD))

    def fixed_keys(self, other: OtherSequence, mechanism_rng: Array | None = None) -> FixedKeys | FixedSums:
        """What decoding keeps of another sequence, computed once; `mechanism_rng` is the layer's."""
        mechanism, learned = self.config.cross_mechanism, learned_arrays(self.learned, None)
        return fix_keys(mechanism, self.cross_keys(other), cross_rng(mechanism_rng), learned)

    def read_fixed(
        self,
        x_BLD: Array,
        segments_BL: Array,
        positions_BL: Array,
        fixed: FixedKeys | FixedSums,
        rng: Array | None = None,
    ) -> tuple[Array, AttentionOperands | None]:
        """`cross` from what `fixed_keys` gave, for as many rows or a multiple of them.

        Also the queries and keys; None where sums are all that is left of the keys. `rng` turns dropout of the weights
        on.
        """
        q_BLHK, config = self.cross_query(x_BLD), self.config
        keys = None if isinstance(fixed, FixedSums) else fixed.key_BGMK.swapaxes(1, 2)
        operands = None if keys is None else self.cross_operands(x_BLD, q_BLHK, keys)
        centres_BLH, additive_HK = (None, None) if operands is None else (operands.centres_BLH, operands.additive_HK)
        new = NewQueries(q_BLHK, segments_BL, positions_BL, centres_BLH)
        learned = learned_arrays(self.learned, None)
        options = dataclasses.replace(self.options(rng), additive=additive_HK, learned=learned)
        if config.cross_mechanism.draws_in_training and rng is not None:
            options = dataclasses.replace(options, rng=fold(rng, DRAW_STREAM), return_lse=True)
        out_BLHK, drawn_BHL = attend_fixed(config.cross_mechanism, fixed, new, options)
        return self.join_heads(out_BLHK), None if operands is None else operands._replace(drawn_BHL=drawn_BHL)

    def project(
        self, x_BLD: Array, positions_BL: Array, mechanism: Mechanism, memory: LayerMemory | None = None
    ) -> tuple[Array, Array, Array]:
        """Query [B, L, H, K], key and value [B, M, H, K], rotated where the config says so: what a cache keeps.

        M is L, and with memory so much more.
        """
        read_BMD, key_positions_BM = x_BLD, positions_BL
        if memory is not None:
            read_BMD = spread(jnp.concatenate([memory.states_BMD.astype(x_BLD.dtype), x_BLD], axis=1), 'BMD')
            key_positions_BM = jnp.broadcast_to(jnp.arange(read_BMD.shape[1]), read_BMD.shape[:2])
            positions_BL = key_positions_BM[:, -x_BLD.shape[1] :]
        return self.compared(x_BLD, read_BMD, mechanism, (positions_BL, key_positions_BM))

    def compared(
        self, x_BLD: Array, read_BMD: Array, mechanism: Mechanism, places: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Query [B, L, H, K] of `x`, key and value [B, M, H, K] of what it reads.

        `places` are the positions of both, by which the config may rotate them; without any, contents alone count.
        """
        v_BMHK = self.split_heads(self.value(read_BMD))
        if not mechanism.reads_keys:  # vectors in the places of those that nothing compares
            return v_BMHK if self.query is None else self.split_heads(self.query(x_BLD)), v_BMHK, v_BMHK
        q_BLHK = self.general_query(self.split_heads(of_module(self.query)(x_BLD)))
        has_keys, k_BMHK = not self.config.shared_qk, self.keys_of(read_BMD, None if places is None else places[1])
        if k_BMHK is None:
            k_BMHK = q_BLHK if read_BMD is x_BLD else self.split_heads(of_module(self.query)(read_BMD))
        if self.config.rotary and places is not None:
            is_one = k_BMHK is q_BLHK
            q_BLHK = rotate(q_BLHK, places[0])
            k_BMHK = q_BLHK if is_one else rotate(k_BMHK, places[1])
        if not has_keys and not mechanism.normalises_keys:
            k_BMHK = keys_of_queries(k_BMHK)
        q_BLHK = q_BLHK * self.config.query_scale if self.config.query_scale != 1.0 else q_BLHK
        return q_BLHK, k_BMHK, v_BMHK

    def join_heads(self, out_BLHK: Array) -> Array:
        """The output projection of the heads' results, [B, L, H, K] -> [B, L, D]."""
        return spread(self.out(jax.lax.collapse(spread(out_BLHK, 'BLHK'), 2)), 'BLD')

    def split_heads(self, x_BLI: Array) -> Array:
        """[B, L, H x K] -> [B, L, H, K]."""
        return spread(x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width), 'BLHK')


def of_module(query: Any) -> Any:
    """The projection of queries, where the mechanism reads them."""
    assert query is not None
    return query


def cross_options(mechanism: Mechanism, context: Context, other: OtherSequence, options: Options) -> Options:
    """The options with what says which token of a layer's input reads which of another sequence.

    Positions are left out where the mechanism compares none, as those of arrays hinder some backends.
    """
    rng = cross_rng(context.mechanism_rng) if mechanism.needs_rng else None
    options = dataclasses.replace(options, rng=rng, query_segments=context.segments_BL, key_segments=other.segments_BM)
    if not mechanism.compares_positions:
        return options
    return dataclasses.replace(options, query_positions=context.positions_BL, key_positions=other.positions_BM)


def cross_rng(mechanism_rng: Array | None) -> Array | None:
    """The key of what a layer's cross-attention draws, apart from what its self-attention draws."""
    return fold(mechanism_rng, CROSS_STREAM)


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
        self.query = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)
        self.key = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)
        self.value = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)

    def __call__(self, x_BLD: Array) -> tuple[Array, Array, Array]:
        """Query, key and value [B, L, H x K]."""
        return self.query(x_BLD), self.key(x_BLD), self.value(x_BLD)


def keys_of_queries(q_BLHK: Array) -> Array:
    """Keys of shared-QK attention for softmax over q k^T / sqrt(K): sqrt(K) q / |q|, so that the logits are LSH's.

    Source: Kitaev et al. 2020, arXiv 2001.04451, section 2, k = q / |q|. `unit_keys` of attention/lsh/ multiplies by
    1 / |q| where this divides by |q|: they round differently, and trained models keep the results that they had.
    """
    q32 = q_BLHK.astype(jnp.float32)
    norm = jnp.sqrt(jnp.square(q32).sum(axis=-1, keepdims=True) + 1e-12)
    return (q32 / norm * math.sqrt(q_BLHK.shape[-1])).astype(q_BLHK.dtype)
