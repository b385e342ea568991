"""Incremental decoding with caches: the decoder processes a text in pieces of one or more tokens.

The logits equal the logits of the decoder on the full text. Padding may follow the tokens of any piece and takes no
position number. Therefore rows of different lengths can be decoded together.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.cache import (
    beam_row_indices,
    expand_to_beams,
    init_cache,
    reorder_beams,
    take_rows,
)
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.cross_attention_cache import CrossAttentionKeys
from efficient_attention.attention.features.cross_attention_sums import CrossAttentionSums
from efficient_attention.attention.patterns import Window
from efficient_attention.attention.request import AnySegments, segments_and_lengths
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import require
from efficient_attention.models import recurrent_decoder_attention
from efficient_attention.models.decoder import Decoder, check_layer_activations
from efficient_attention.models.encoder import mechanism_rng
from efficient_attention.models.layer_activations import (
    LayerActivations,
    LayerOutputAndOperands,
    pad_and_stack_activations,
)
from efficient_attention.models.layer_stack import layer_mechanisms
from efficient_attention.modules.layer import FIXED, GROWING, STATE, initial_streams, merge_streams
from efficient_attention.modules.layer import Kept as SubLayerKept
from efficient_attention.modules.layer_context import Context, EncodedSource, fold_into_key, require_source
from efficient_attention.recurrence.run_cell import RecurrentState

PIECE = 128  # prompt tokens that one decoding step reads; attention scores then have the shape [piece, cache + piece]


# The cached values of a sub-layer, or of a decoder's attention outside its layers (`RecurrentDecoderAttention`).
Kept = SubLayerKept | recurrent_decoder_attention.RecurrentDecoderCache


class DecodeState(NamedTuple):
    """The state of incremental decoding: the caches of all layers, and the number of tokens read per batch row, int32
    [B].
    """

    caches: tuple[Kept, ...]
    length_B: Array

    def expand_to_beams(self, count: int) -> 'DecodeState':
        """Returns the decoding state for beam search: each batch row is repeated as `count` adjacent, identical beams.

        The beams of a row share the cached keys and values of the encoded source.
        """
        caches = (
            one if isinstance(one, CrossAttentionKeys | CrossAttentionSums) else expand_to_beams(one, count)
            for one in self.caches
        )
        return DecodeState(tuple(caches), jnp.repeat(self.length_B, count))

    def repeat_rows(self, count: int) -> 'DecodeState':
        """Returns the decoding state of `count` adjacent copies of each batch row, which continue separately with any
        number of tokens each.
        """
        rows_b = jnp.repeat(jnp.arange(len(self.length_B)), count)
        return DecodeState(tuple(take_rows(one, rows_b) for one in self.caches), self.length_B[rows_b])

    def reorder_beams(self, parents_BK: Array) -> 'DecodeState':
        """Returns the decoding state after a beam-search step, in which each beam continues from its given parent
        beam.
        """
        caches = (
            one if isinstance(one, CrossAttentionKeys | CrossAttentionSums) else reorder_beams(one, parents_BK)
            for one in self.caches
        )
        return DecodeState(tuple(caches), take_rows(self.length_B, beam_row_indices(parents_BK)))


class CachedDecoder:
    """A decoder for incremental decoding: separate parameters for each layer, and the specifications of the caches.

    Create the object inside the jitted function that uses it.

    Args:
        decoder: any decoder; its stack may be plain or reversible, its layers separate or shared.
        max_length: maximum tokens per row, including the prompt. Cache memory grows with it only if the attention can
            read that far back.

    Raises:
        InputError: an attention of the config does not support token-by-token decoding.
    """

    def __init__(self, decoder: Decoder, max_length: int) -> None:
        self.decoder = decoder
        self.config = decoder.config
        self.specs = cache_specs(self.config, max_length)
        layers = decoder.stack.parameter_layers()
        self.layers = tuple(layers[number] for number in self.config.layer_to_param_index)
        self.terms = decoder.stack.shared_terms()

    def init_state(self, batch: int, step: int = 0, other: EncodedSource | None = None) -> DecodeState:
        """Returns the decoding state before the first token, with empty caches.

        Args:
            batch: number of rows.
            step: training step, which selects the layers' random features.
            other: the sequence that cross-attention reads, if there is one. Its keys are computed once, here.
        """
        rng, source = mechanism_rng(self.config, step), self.decoder.source
        if source is not None:
            kept = source.initial_reader_state(batch, self.config.compute_dtype, other)
            if source.attention is None:
                return DecodeState((kept,), jnp.zeros(batch, jnp.int32))
            fixed = source.source_keys_for_decoding(require_source(other, 'the decoder'), rng)
            return DecodeState((kept, fixed), jnp.zeros(batch, jnp.int32))
        caches: list[Kept] = []
        for number, (layer, spec) in enumerate(zip(self.layers, self.specs, strict=True)):
            for sub in layer.sub_layers:
                if sub.cache_kind == GROWING:
                    caches.append(init_cache(spec, batch, self.config.compute_dtype, fold_into_key(rng, number)))
                elif sub.cache_kind == STATE:
                    caches.append(first_state(other, number) or getattr(layer, sub.name).empty_state(batch))
                elif sub.cache_kind == FIXED:
                    caches.append(
                        getattr(layer, sub.name).source_keys_for_decoding(
                            require_source(other, sub.name), fold_into_key(rng, number)
                        )
                    )
        return DecodeState(tuple(caches), jnp.zeros(batch, jnp.int32))

    def __call__(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: AnySegments | None = None
    ) -> tuple[Array, DecodeState]:
        """Returns float32 next-token logits [B, n, V] for n new tokens, and the decoding state after these tokens.

        Args:
            state: the decoding state after all earlier tokens.
            tokens_Bn: ids below V.
            segments_Bn: 0 = padding, only at the end of the piece; 1, 2, ... = texts that do not attend to each other,
                as in `Decoder`; an array [B, n] or the `Lengths` of the new tokens. All 1 by default.
        """
        logits_BnV, state, _ = self.step(state, tokens_Bn, segments_Bn)
        return logits_BnV, state

    def with_layer_activations(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: AnySegments | None = None
    ) -> tuple[Array, DecodeState, LayerActivations]:
        """Returns the logits, the new decoding state and the layer activations of the new tokens.

        The keys among the activations are only the keys of the new tokens. The arguments are the same as for
        `__call__`.

        Raises:
            InputError: the decoder reads its source outside its layers (`RecurrentDecoderAttention`).
        """
        check_layer_activations(self.decoder)
        logits_BnV, state, each = self.step(state, tokens_Bn, segments_Bn)
        return logits_BnV, state, pad_and_stack_activations(each, self.config.compute_dtype)

    def hidden(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: AnySegments | None = None
    ) -> tuple[Array, DecodeState]:
        """Returns the final hidden states [B, n, D] of the new tokens, from which `logits` computes the logits, and the
        new decoding state.

        The arguments are the same as for `__call__`.
        """
        return self.hidden_and_activations(state, tokens_Bn, segments_Bn)[:2]

    def logits(self, hidden_BnD: Array) -> Array:
        """Returns float32 logits [B, n, V] from the final hidden states of all or some of the new tokens."""
        return self.decoder.logits(hidden_BnD)

    def step(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: AnySegments | None = None
    ) -> tuple[Array, DecodeState, list[LayerOutputAndOperands]]:
        """Returns the logits of the new tokens, the new decoding state and the activations of each layer.

        XLA removes unused activations, so they cost nothing. The arguments are the same as for `__call__`.
        """
        x_BnD, state, each = self.hidden_and_activations(state, tokens_Bn, segments_Bn)
        return self.logits(x_BnD), state, each

    def hidden_and_activations(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: AnySegments | None
    ) -> tuple[Array, DecodeState, list[LayerOutputAndOperands]]:
        """Returns the final hidden states of the new tokens, the new decoding state and the activations of each layer.

        The arguments are the same as for `__call__`.
        """
        given = jnp.ones_like(tokens_Bn) if segments_Bn is None else segments_Bn
        array_Bn, _ = segments_and_lengths(given, tokens_Bn.shape[1])
        positions_Bn = state.length_B[:, None] + jnp.arange(tokens_Bn.shape[1], dtype=jnp.int32)[None]
        # The positions of padding are set to 0, because they may exceed the position table.
        # A look-up beyond the table gives NaN, and an attention weight of 0 would not remove NaN.
        positions_Bn = jnp.where(array_Bn != 0, positions_Bn, 0)
        x_BnD = self.decoder.embeddings(tokens_Bn, jnp.zeros_like(tokens_Bn), positions_Bn)
        if self.config.position_limit is not None:
            is_beyond_Bn = positions_Bn >= self.config.position_limit
            x_BnD = jnp.where(is_beyond_Bn[..., None], jnp.nan, x_BnD)
        if self.decoder.source is None:
            x_BnD, caches, each = self.run_layers(x_BnD, state.caches, positions_Bn, array_Bn)
            x_BnD = x_BnD if self.decoder.norm is None else self.decoder.norm(x_BnD)
        else:
            x_BnD, caches, each = *self.run_source(x_BnD, state.caches, positions_Bn, array_Bn), []
        length_B = state.length_B + (array_Bn != 0).sum(axis=1, dtype=jnp.int32)
        return x_BnD, DecodeState(caches, length_B), each

    def run_source(
        self, x_BnD: Array, caches: tuple[Any, ...], positions_Bn: Array, segments_Bn: Array
    ) -> tuple[Array, tuple[Kept, ...]]:
        """Returns the output layer's input and the new caches, for a recurrent decoder with attention outside its
        layers (`RecurrentDecoderAttention`).
        """
        (kept, *fixed), decoder, source = caches, self.decoder, self.decoder.source
        assert source is not None
        context = Context(segments_Bn, positions_Bn)
        keys = fixed[0] if fixed else None
        found, kept = source.run_with_cache(decoder.stack, decoder.normed, x_BnD, context, kept, keys)
        return source.read_out(found, x_BnD, None), (kept, *fixed)

    def run_layers(
        self, x_BnD: Array, caches: tuple[Kept, ...], positions_Bn: Array, segments_Bn: Array
    ) -> tuple[Array, tuple[Kept, ...], list[LayerOutputAndOperands]]:
        """Returns the last layer's output for the new tokens, the caches including these tokens, and each layer's
        activations.
        """
        context = Context(segments_Bn, positions_Bn).with_shared_terms(self.terms)
        before, each = iter(caches), []
        after: list[Kept] = []
        streams = initial_streams(x_BnD, is_reversible=self.config.stack == 'reversible')
        for number, (layer, spec) in enumerate(zip(self.layers, self.specs, strict=True)):
            streams, kept, operands = layer.run_with_cache(streams, context._replace(layer=number), spec, before)
            after += kept
            each.append((streams, operands))
        return merge_streams(streams, x_BnD.dtype), tuple(after), each


def first_state(other: EncodedSource | None, number: int) -> RecurrentState | None:
    """Returns the initial state of a recurrent decoder layer, from the encoded source; None if the source gives no
    initial states.
    """
    if other is None or other.first_BNU is None:
        return None
    return RecurrentState(
        tuple(x_BNU[:, number] for x_BNU in other.first_BNU), jnp.ones(len(other.segments_BM), jnp.int32)
    )


def cache_specs(config: ModelConfig, max_length: int) -> tuple[CacheSpec, ...]:
    """Returns the specification of each layer's decoding cache.

    In a model with segment memory, each token attends to the `memory_length` tokens before it, as if every segment were
    one token.

    Raises:
        InputError: an attention does not support token-by-token decoding.
    """
    heads, width = config.heads, config.head_width
    mechanisms = layer_mechanisms(config)
    allowed = '0 for token-by-token generation, which reads only the latest tokens'
    require(not config.compressed_length, 'model.compressed_length', config.compressed_length, allowed)
    if config.memory_length:
        window = Window(config.memory_length - config.same_length)
        mechanisms = tuple(mechanism.restrict_to_pattern(window) for mechanism in mechanisms)
    return tuple(CacheSpec(mechanism, heads, heads, width, max_length) for mechanism in mechanisms)


def read_prompt(
    cached: CachedDecoder, state: DecodeState, tokens_BL: Array, segments_BL: AnySegments, piece: int = PIECE
) -> DecodeState:
    """Returns the decoding state after a prompt of any length, which the decoder processes `piece` tokens at a time.

    Padding is allowed only at the end of rows.
    """
    array_BL, _ = segments_and_lengths(segments_BL, tokens_BL.shape[1])
    extra = -tokens_BL.shape[1] % piece

    def cut(x_BL: Array) -> Array:
        padded = jnp.pad(x_BL, ((0, 0), (0, extra)))
        return padded.reshape(len(x_BL), -1, piece).swapaxes(0, 1)

    def read(state: DecodeState, tokens_and_segments: tuple[Array, Array]) -> tuple[DecodeState, None]:
        return cached(state, *tokens_and_segments)[1], None

    return jax.lax.scan(read, state, (cut(tokens_BL), cut(array_BL)))[0]


def read_prompt_but_last(
    cached: CachedDecoder, state: DecodeState, tokens_BL: Array, segments_BL: AnySegments, piece: int = PIECE
) -> tuple[DecodeState, Array]:
    """Returns the decoding state after all prompt tokens except each row's last one, and that last token, int32 [B].

    Otherwise, the function works like `read_prompt`.
    """
    if tokens_BL.shape[1] == 1:
        return state, tokens_BL[:, 0]
    array_BL, _ = segments_and_lengths(segments_BL, tokens_BL.shape[1])
    last_B1 = (array_BL != 0).sum(axis=1, keepdims=True) - 1
    before_BL = jnp.where(jnp.arange(tokens_BL.shape[1])[None] < last_B1, array_BL, 0)
    state = read_prompt(cached, state, tokens_BL, before_BL, piece)
    return state, jnp.take_along_axis(tokens_BL, last_B1, axis=1)[:, 0]
