"""The self-attention module: projects queries, keys and values, calls `attend`, and applies the output projection."""

import dataclasses
import math
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with_options
from efficient_attention.attention.cache import Cache, decode
from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.foreign_keywords import refuse_foreign_keywords
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.patterns import Window
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import AnySegments, CallOptions
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.global_tokens import GlobalProjections, GlobalTokens, attend_with_global
from efficient_attention.modules.layer_constructors import embedding, kernel_init, linear
from efficient_attention.modules.layer_context import Context, ContextOptions, LayerMemory, fold_into_key, make_context
from efficient_attention.modules.learned_operands import LearnedOperands, make_learned
from efficient_attention.modules.low_rank import with_low_rank
from efficient_attention.modules.positions import apply_rotary_positions
from efficient_attention.modules.transformer_xl_distances import DistanceTerm

DRAW_STREAM = 0x64726177  # constant folded into the PRNG key of mechanisms that sample only in training


class AttentionOperands(NamedTuple):
    """Queries, keys and the further arrays that determine the weights of an attention.

    `attention_weights` and `attend` take these arrays as arguments.
    """

    query_BLHK: Array
    key_BMHK: Array
    relative: Relative | None = None
    additive_HK: Array | None = None
    centres_BLH: Array | None = None
    # In training: log-probabilities of the keys that the queries sampled.
    drawn_BHL: Array | None = None
    value_BMHK: Array | None = None  # only self-attention stores values; attention weights do not depend on values
    learned: dict[str, Array] | None = None  # arrays that the mechanism learns, by name
    global_tokens: GlobalTokens | None = None

    def add_to_options(self, options: CallOptions) -> CallOptions:
        """Returns options of `attend` with these operands added: relative term, score vector, window centres and
        learned arrays.
        """
        return dataclasses.replace(
            options,
            relative=self.relative,
            additive=self.additive_HK,
            centres=self.centres_BLH,
            learned=self.learned,
        )


class AttentionProjections(nnx.Module):
    """The learned projections and score parameters of an attention; the abstract base class of `Attention` and
    `CrossAttention`.
    """

    config: LayerConfig
    learned: LearnedOperands | None

    def make_projections(self, mechanism: Mechanism, *, has_key: bool, rngs: nnx.Rngs) -> None:
        """Creates the output projection, and the projections for queries, keys and values that the mechanism uses."""
        config = self.config
        inner, use_bias = config.heads * config.head_width, config.attention_bias
        has_query = mechanism.key_access.queries
        self.query = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias) if has_query else None
        if self.query is not None and config.kernel_init == 'fan_in' and not config.scaled_logits:
            self.query.kernel[...] = self.query.kernel[...] / config.logit_scale
        has_key = has_key and config.score != 'location' and mechanism.key_access.keys
        self.key = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias) if has_key else None
        self.value = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)
        self.out = linear(config, inner, config.width, rngs, axes='ID', use_bias=use_bias)

    def make_scores(self, rngs: nnx.Rngs) -> None:
        """Creates the parameters of attention scores other than the dot product."""
        config = self.config
        self.general = GeneralScore(config, rngs=rngs) if config.score == 'general' else None
        self.additive = AdditiveScore(config, rngs=rngs) if config.score == 'additive' else None
        self.location = LocationScore(config, rngs=rngs) if config.score == 'location' else None

    def project_query(self, x_BLD: Array) -> Array:
        """Returns the queries [B, L, H, K] of the layer's input; for 'general' scores, multiplied by the score
        matrix.
        """
        assert self.query is not None  # only mechanisms that use queries call `project_query`
        q_BLHK = self.split_heads(self.query(x_BLD))
        return q_BLHK if self.general is None else self.general(q_BLHK)

    def project_keys(self, read_BMD: Array, positions_BM: Array | None) -> Array | None:
        """Returns the keys [B, M, H, K] of the vectors that are read; for scores by location, the keys of their
        positions.

        Positions are 0, 1, ... by default. The result is None if the queries also serve as keys (shared QK).
        """
        if self.location is not None:
            if positions_BM is None:
                positions_BM = jnp.broadcast_to(jnp.arange(read_BMD.shape[1]), read_BMD.shape[:2])
            return self.split_heads(self.location(positions_BM))
        return None if self.key is None else self.split_heads(self.key(read_BMD))

    def additive_vector(self) -> Array | None:
        """Returns the vector v [H, K] of additive attention scores; None for other scores."""
        return None if self.additive is None else self.additive()

    def attend_options(self, rng: Array | None) -> CallOptions:
        """Returns the options of `attend` that the config determines; `rng` enables dropout of the attention
        weights.
        """
        rate = 0.0 if rng is None else self.config.attention_dropout_rate
        return CallOptions(dropout_rate=rate, dropout_rng=rng, backend=self.config.attention_backend)

    def split_heads(self, x_BLI: Array) -> Array:
        """Reshapes projected vectors [B, L, H x K] to one vector per head, [B, L, H, K]."""
        return shard_activations(x_BLI.reshape(*x_BLI.shape[:2], self.config.heads, self.config.head_width), 'BLHK')

    def merge_and_project_heads(self, out_BLHK: Array) -> Array:
        """Returns the output projection of the heads' concatenated results, [B, L, H, K] -> [B, L, D]."""
        return shard_activations(self.out(jax.lax.collapse(shard_activations(out_BLHK, 'BLHK'), 2)), 'BLD')


class Attention(AttentionProjections):
    """Multi-head self-attention [B, L, D] -> [B, L, D] with any attention mechanism (Vaswani et al. 2017, section
    3.2.2).
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config, mechanism = config, config.mechanisms[0]
        self.query_scale = config.query_scale
        self.make_projections(mechanism, has_key=not config.shared_qk, rngs=rngs)
        self.global_projections = GlobalProjections(config, rngs=rngs) if config.global_tokens else None
        self.distances = DistanceTerm(config, rngs=rngs) if config.relative == 'transformer_xl' else None
        self.make_scores(rngs)
        self.learned = make_learned(config, mechanism, rngs=rngs)
        with_low_rank(self, config, ('query', 'key', 'value', 'out'), rngs)

    @refuse_foreign_keywords
    def __call__(
        self,
        x_BLD: Array,
        segments_BL: AnySegments,
        positions_BL: Array,
        *,
        mechanism: Mechanism | None = None,
        **options: Unpack[ContextOptions],
    ) -> Array:
        """Returns the attention output [B, L, D], without the operands that `run` also returns.

        `segments_BL` is an array or `Lengths`. The other arguments are the fields of `Context`.
        """
        return self.run(x_BLD, make_context(segments_BL, positions_BL, **options), mechanism)[0]

    def run(
        self, x_BLD: Array, context: Context, mechanism: Mechanism | None = None
    ) -> tuple[Array, AttentionOperands]:
        """Returns the attention output, and the queries and keys from which the attention scores are computed.

        A query attends within its segment, including the memory.

        Args:
            x_BLD: the input.
            context: other inputs; `rng` enables dropout of the weights.
            mechanism: by default the config's first mechanism.
        """
        memory = context.memory
        assert memory is None or isinstance(memory, LayerMemory)
        mechanism, options = self.mechanism_and_options(context, mechanism)
        q_BLHK, k_BMHK, v_BMHK = self.project_with_memory(x_BLD, context.positions_BL, mechanism, memory)
        if context.is_global_BL is not None:
            tokens = self.global_tokens(x_BLD, context.is_global_BL)
            out_BLHK = attend_with_global(q_BLHK, k_BMHK, v_BMHK, tokens, mechanism, context.segments_BL, options)
            operands = AttentionOperands(q_BLHK, k_BMHK, value_BMHK=v_BMHK, global_tokens=tokens)
            return self.merge_and_project_heads(gated(out_BLHK, context)), operands
        operands = self.attention_operands(q_BLHK, k_BMHK, v_BMHK, context, distances=k_BMHK.shape[1])
        q_BLHK = operands.query_BLHK
        out_BLHK, _ = attend_with_options(q_BLHK, k_BMHK, v_BMHK, mechanism, operands.add_to_options(options))
        return self.merge_and_project_heads(gated(out_BLHK, context)), operands

    def mechanism_and_options(
        self, context: Context, mechanism: Mechanism | None = None
    ) -> tuple[Mechanism, CallOptions]:
        """Returns the mechanism and the options with which `run` calls `attend`, except the operands.

        The options of a call with global tokens have neither segments nor a bias; `attend_with_global` adds segments.
        """
        config, segments_BL, memory = self.config, context.segments_BL, context.memory
        mechanism = config.mechanisms[0] if mechanism is None else mechanism
        draws = fold_into_key(context.rng, DRAW_STREAM) if mechanism.randomness.noise else context.mechanism_rng
        options = dataclasses.replace(self.attend_options(context.rng), rng=draws, layer=context.layer)
        if context.is_global_BL is not None:
            if context.bias is not None or context.distance_biases is not None:
                raise ValueError('is_global and bias do not go together: global tokens support no bias on the logits')
            return mechanism, options
        read = context.attend_segments
        options = dataclasses.replace(options, bias=context.bias, query_segments=read, key_segments=read)
        if isinstance(memory, LayerMemory):
            options = dataclasses.replace(options, query_segments=segments_BL)
            options = memory.memory_attend_options(options, segments_BL)
            mechanism = match_memory_length(mechanism, memory) if config.same_length else mechanism
        return mechanism, options

    def run_with_cache(
        self, x_BnD: Array, context: Context, spec: CacheSpec, cache: Cache
    ) -> tuple[Array, Cache, AttentionOperands]:
        """Returns the attention output for new tokens in incremental decoding, the updated cache, and the attention
        operands that `run` also returns.

        The new tokens attend to the cached tokens and to each other.

        Args:
            x_BnD: the input.
            context: its positions are positions in the text; it has no dropout and no memory.
            spec: specification of the cache.
            cache: the cache with all earlier tokens.
        """
        query, key, value = self.project_with_memory(x_BnD, context.positions_BL, spec.mechanism)
        distances = spec.mechanism.causal_window_size(spec.max_length) if self.distances is not None else 0
        operands = self.attention_operands(query, key, None, context, distances=distances)
        new = NewTokens(operands.query_BLHK, key, value, context.positions_BL, context.segments_BL)
        out_BnHK, cache = decode(
            spec,
            cache,
            new,
            bias=context.bias,
            relative=operands.relative,
            additive=operands.additive_HK,
            learned=operands.learned,
        )
        return self.merge_and_project_heads(gated(out_BnHK, context)), cache, operands

    def attention_operands(
        self, q_BLHK: Array, k_BMHK: Array, v_BMHK: Array | None, context: Context, *, distances: int
    ) -> AttentionOperands:
        """Returns all operands of the attention scores: final queries and keys, values, relative term, score vector,
        learned arrays.
        """
        relative = None
        if self.distances is not None:
            q_BLHK, relative = self.distances(q_BLHK, distances, context.distance_biases)
        learned = context.learned if self.learned is None else self.learned(context.learned)
        additive_HK = self.additive_vector()
        return AttentionOperands(q_BLHK, k_BMHK, relative, additive_HK, value_BMHK=v_BMHK, learned=learned)

    def global_tokens(self, x_BLD: Array, is_global_BL: Array) -> GlobalTokens:
        """Returns the queries, keys and values of global tokens; raises ValueError if the config allows no global
        tokens.
        """
        if self.global_projections is None:
            raise ValueError(
                'is_global needs model.global_tokens, the maximum number of global tokens per row, above 0'
            )
        q_BLHK, k_BLHK, v_BLHK = (self.split_heads(x_BLI) for x_BLI in self.global_projections(x_BLD))
        return GlobalTokens(is_global_BL, q_BLHK, k_BLHK, v_BLHK, self.config.global_tokens)

    def project_with_memory(
        self, x_BLD: Array, positions_BL: Array, mechanism: Mechanism, memory: LayerMemory | None = None
    ) -> tuple[Array, Array, Array]:
        """Returns queries [B, L, H, K] of the input, and keys and values [B, M, H, K] of the memory and the input.

        Rotary positions are applied if the config has them. Caches store these keys and values. M is L, plus the length
        of the memory if there is one.
        """
        read_BMD, key_positions_BM = x_BLD, positions_BL
        if memory is not None:
            read_BMD = shard_activations(jnp.concatenate([memory.states_BMD.astype(x_BLD.dtype), x_BLD], axis=1), 'BMD')
            key_positions_BM = jnp.broadcast_to(jnp.arange(read_BMD.shape[1]), read_BMD.shape[:2])
            positions_BL = key_positions_BM[:, -x_BLD.shape[1] :]
        return self.project_query_key_value(x_BLD, read_BMD, mechanism, (positions_BL, key_positions_BM))

    def project_query_key_value(
        self, x_BLD: Array, read_BMD: Array, mechanism: Mechanism, places: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Returns queries [B, L, H, K] of the input `x_BLD`, and keys and values [B, M, H, K] of the vectors
        `read_BMD`.

        `places` holds the positions of queries and keys, for rotary positions and scores by location. Without `places`,
        rotary positions are off.
        """
        v_BMHK = self.split_heads(self.value(read_BMD))
        if not mechanism.key_access.keys:  # this mechanism uses no keys, so values are placeholders
            return v_BMHK if self.query is None else self.split_heads(self.query(x_BLD)), v_BMHK, v_BMHK
        q_BLHK = self.project_query(x_BLD)
        has_keys, k_BMHK = not self.config.shared_qk, self.project_keys(read_BMD, None if places is None else places[1])
        if k_BMHK is None:
            assert self.query is not None
            k_BMHK = q_BLHK if read_BMD is x_BLD else self.split_heads(self.query(read_BMD))
        if self.config.rotary and places is not None:
            is_one = k_BMHK is q_BLHK
            q_BLHK = apply_rotary_positions(q_BLHK, places[0])
            k_BMHK = q_BLHK if is_one else apply_rotary_positions(k_BMHK, places[1])
        if not has_keys and not mechanism.requirements.shared_qk:
            k_BMHK = shared_qk_keys(k_BMHK)
        q_BLHK = q_BLHK * self.query_scale if self.query_scale != 1.0 else q_BLHK
        return q_BLHK, k_BMHK, v_BMHK


def gated(out_BLHK: Array, context: Context) -> Array:
    """Returns the heads' results multiplied by the gates of the context's layer; unchanged without gates."""
    if context.head_gates_NH is None:
        return out_BLHK
    assert context.layer is not None  # `Context.layer_context` sets the number
    gates_H = context.head_gates_NH[context.layer][: out_BLHK.shape[2]]
    return out_BLHK * gates_H[None, None, :, None].astype(out_BLHK.dtype)


def match_memory_length(mechanism: Mechanism, memory: LayerMemory) -> Mechanism:
    """Returns the mechanism restricted to a window with as many keys per query as the memory has tokens; the query's
    own key is one of them.

    The released code of Transformer-XL evaluates like this (`same_length`), so that all queries of a segment have
    equally long contexts.
    """
    length = memory.segments_BM.shape[1]
    if not length:
        return mechanism
    return mechanism.restrict_to_pattern(Window(length - 1))


def shared_qk_keys(q_BLHK: Array) -> Array:
    """Returns the keys of shared-QK attention, computed from its queries as sqrt(K) q / |q|, for softmax over q k^T /
    sqrt(K).

    So the logits equal the logits of LSH attention. Source: Kitaev et al. 2020, arXiv 2001.04451, section 2, k = q /
    |q|. This function divides by |q|, while `unit_keys` of attention/lsh/ multiplies by 1 / |q|. The two round
    differently; they stay different so that results of trained models do not change.
    """
    q32 = q_BLHK.astype(jnp.float32)
    norm = jnp.sqrt(jnp.square(q32).sum(axis=-1, keepdims=True) + 1e-12)
    return (q32 / norm * math.sqrt(q_BLHK.shape[-1])).astype(q_BLHK.dtype)


class GeneralScore(nnx.Module):
    """The matrices W of 'general' attention scores q W k, which multiply the queries, [B, L, H, K] -> [B, L, H, K].

    There is one matrix per head. Source: Luong et al. 2015, arXiv 1508.04025, equation 8, "general".
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        width = config.head_width
        draw = kernel_init(config, 1.0 / math.sqrt(width))
        self.matrix = nnx.Param(draw(rngs.params(), (config.heads, width, width), jnp.float32))

    def __call__(self, q_BLHK: Array) -> Array:
        """Returns the queries multiplied by the matrix W of their head."""
        matrix_HKJ = jnp.asarray(self.matrix[...], q_BLHK.dtype)
        return float32_einsum('BLHK,HKJ->BLHJ', q_BLHK, matrix_HKJ).astype(q_BLHK.dtype)


class AdditiveScore(nnx.Module):
    """The vector v of additive attention scores v tanh(q + k), [H, K], one per head (Bahdanau et al. 2014, arXiv
    1409.0473).
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        draw = kernel_init(config, 1.0 / math.sqrt(config.head_width))
        self.vector = nnx.Param(draw(rngs.params(), (config.heads, config.head_width), jnp.float32))

    def __call__(self) -> Array:
        """Returns the vector v of additive attention scores for each head, float32 [H, K]."""
        return jnp.asarray(self.vector[...])


class LocationScore(nnx.Module):
    """The keys of attention scores by location, which do not depend on the tokens: a learned vector per key position
    and head.

    Source: Luong et al. 2015, arXiv 1508.04025, equation 9: softmax(W h); these vectors are the rows of W.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.table = embedding(config, config.location_length, config.heads * config.head_width, rngs)

    def __call__(self, positions_BM: Array) -> Array:
        """Returns the keys [B, M, H x K] of these positions, multiplied by sqrt(K); NaN at positions beyond the learned
        table.

        `attend` divides the scores by sqrt(K) again.
        """
        return self.table(positions_BM) * math.sqrt(self.config.head_width)
