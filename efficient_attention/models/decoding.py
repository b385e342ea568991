"""Incremental decoding with caches: a decoder that goes on with a text piece by piece.

Logits equal those of the decoder on the whole text: positions are the numbers of a row's tokens, and padding, which may
stand at the end of any piece, counts for nothing. So rows of unequal lengths go on side by side.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.cache import (
    go_on_from,
    init_cache,
    rows_of,
    take_rows,
    with_hypotheses,
)
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.features.fixed_sums import FixedSums
from efficient_attention.attention.fixed_keys import FixedKeys
from efficient_attention.attention.patterns import Window
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import require
from efficient_attention.models import source_reader
from efficient_attention.models.decoder import Decoder, check_taps
from efficient_attention.models.encoder import mechanism_rng
from efficient_attention.models.stack import layer_mechanisms
from efficient_attention.models.taps import LayerTap, Taps, taps_of_each
from efficient_attention.modules.context import Context, OtherSequence, fold, given
from efficient_attention.modules.layer import FIXED, GROWING, STATE, begin, end
from efficient_attention.modules.layer import Kept as SubLayerKept
from efficient_attention.recurrence.recur import State

PIECE = 128  # tokens of a prompt that are read at once: their scores are [piece, cache + piece]


# What is kept of the tokens before: by each sub-layer, or by a `SourceReader` outside the layers.
Kept = SubLayerKept | source_reader.Kept


class DecodeState(NamedTuple):
    """Caches of each layer's attentions, and the number of tokens read so far in each row, int32 [B]."""

    caches: tuple[Kept, ...]
    length_B: Array

    def with_hypotheses(self, count: int) -> 'DecodeState':
        """The state of `count` hypotheses for each row, side by side, all alike.

        They share what is kept of another sequence.
        """
        caches = (one if isinstance(one, FixedKeys | FixedSums) else with_hypotheses(one, count) for one in self.caches)
        return DecodeState(tuple(caches), jnp.repeat(self.length_B, count))

    def go_on_from(self, parents_BK: Array) -> 'DecodeState':
        """The state where each of the K hypotheses of a row goes on from one of them, named by its number."""
        caches = (one if isinstance(one, FixedKeys | FixedSums) else go_on_from(one, parents_BK) for one in self.caches)
        return DecodeState(tuple(caches), take_rows(self.length_B, rows_of(parents_BK)))


class CachedDecoder:
    """A decoder's parameters, a layer at a time, and what its caches are for; made inside the program that uses it.

    Args:
        decoder: its stack is plain or reversible, its layers are separate or shared.
        max_length: most tokens of a row, the prompt's included; the memory of caches grows with it only where the
            attention may read that far back.

    Raises:
        InputError: an attention of the config cannot go on token by token.
    """

    def __init__(self, decoder: Decoder, max_length: int) -> None:
        self.decoder = decoder
        self.config = decoder.config
        self.specs = cache_specs(self.config, max_length)
        layers = decoder.stack.parameter_layers()
        self.layers = tuple(layers[number] for number in self.config.layer_numbers)
        self.terms = decoder.stack.terms()

    def init_state(self, batch: int, step: int = 0, other: OtherSequence | None = None) -> DecodeState:
        """The state before any token.

        Args:
            batch: rows.
            step: the training step whose random features the layers draw.
            other: what cross-attention reads, where layers have one; its keys are computed here and never again.
        """
        rng, source = mechanism_rng(self.config, step), self.decoder.source
        if source is not None:
            kept = source.first(batch, self.config.compute_dtype, other)
            if source.attention is None:
                return DecodeState((kept,), jnp.zeros(batch, jnp.int32))
            fixed = source.fixed_keys(given(other, 'the decoder'), rng)
            return DecodeState((kept, fixed), jnp.zeros(batch, jnp.int32))
        caches: list[Kept] = []
        for number, (layer, spec) in enumerate(zip(self.layers, self.specs, strict=True)):
            for sub in layer.sub_layers:
                if sub.cache == GROWING:
                    caches.append(init_cache(spec, batch, self.config.compute_dtype, fold(rng, number)))
                elif sub.cache == STATE:
                    caches.append(first_state(other, number) or getattr(layer, sub.name).empty_state(batch))
                elif sub.cache == FIXED:
                    caches.append(getattr(layer, sub.name).fixed_keys(given(other, sub.name), fold(rng, number)))
        return DecodeState(tuple(caches), jnp.zeros(batch, jnp.int32))

    def __call__(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: Array | None = None
    ) -> tuple[Array, DecodeState]:
        """float32 logits [B, n, V] of what follows each of n new tokens, and the state that includes them.

        Args:
            state: of all tokens before.
            tokens_Bn: ids below V.
            segments_Bn: 0 = padding, at the end of the piece alone; 1, 2, ... = texts that never read one another, as
                in `Decoder`. All 1 by default.
        """
        logits_BnV, state, _ = self.step(state, tokens_Bn, segments_Bn)
        return logits_BnV, state

    def tapped(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: Array | None = None
    ) -> tuple[Array, DecodeState, Taps]:
        """Like `__call__`, and also what all layers computed on the way; keys are only those of the new tokens.

        Raises:
            InputError: the decoder reads its source outside its layers (`SourceReader`).
        """
        check_taps(self.decoder)
        logits_BnV, state, each = self.step(state, tokens_Bn, segments_Bn)
        return logits_BnV, state, taps_of_each(each, self.config.compute_dtype)

    def step(
        self, state: DecodeState, tokens_Bn: Array, segments_Bn: Array | None = None
    ) -> tuple[Array, DecodeState, list[LayerTap]]:
        """Like `__call__`, and also the tap of each layer, which costs nothing where it is not used."""
        segments_Bn = jnp.ones_like(tokens_Bn) if segments_Bn is None else segments_Bn
        positions_Bn = state.length_B[:, None] + jnp.arange(tokens_Bn.shape[1], dtype=jnp.int32)[None]
        # Padding may reach beyond the tables of positions, and a weight of 0 would not undo the NaN that stands there.
        positions_Bn = jnp.where(segments_Bn != 0, positions_Bn, 0)
        x_BnD = self.decoder.embeddings(tokens_Bn, jnp.zeros_like(tokens_Bn), positions_Bn)
        if self.config.position_limit is not None:
            is_beyond_Bn = positions_Bn >= self.config.position_limit
            x_BnD = jnp.where(is_beyond_Bn[..., None], jnp.nan, x_BnD)
        if self.decoder.source is None:
            x_BnD, caches, each = self.run_layers(x_BnD, state.caches, positions_Bn, segments_Bn)
            x_BnD = x_BnD if self.decoder.norm is None else self.decoder.norm(x_BnD)
        else:
            x_BnD, caches, each = *self.run_source(x_BnD, state.caches, positions_Bn, segments_Bn), []
        length_B = state.length_B + (segments_Bn != 0).sum(axis=1, dtype=jnp.int32)
        return self.decoder.head(x_BnD, self.decoder.embeddings.token), DecodeState(caches, length_B), each

    def run_source(
        self, x_BnD: Array, caches: tuple[Any, ...], positions_Bn: Array, segments_Bn: Array
    ) -> tuple[Array, tuple[Kept, ...]]:
        """What the output layer reads, of a decoder that reads its source apart from its layers, and what is kept."""
        (kept, *fixed), decoder, source = caches, self.decoder, self.decoder.source
        assert source is not None
        context = Context(segments_Bn, positions_Bn)
        keys = fixed[0] if fixed else None
        found, kept = source.go_on(decoder.stack, decoder.normed, x_BnD, context, kept, keys)
        return source.read_out(found, x_BnD, None), (kept, *fixed)

    def run_layers(
        self, x_BnD: Array, caches: tuple[Kept, ...], positions_Bn: Array, segments_Bn: Array
    ) -> tuple[Array, tuple[Kept, ...], list[LayerTap]]:
        """The last layer's output, the caches with the new tokens, and the tap of each layer."""
        context = Context(segments_Bn, positions_Bn).with_terms(self.terms)
        before, each = iter(caches), []
        after: list[Kept] = []
        streams = begin(x_BnD, is_reversible=self.config.stack == 'reversible')
        for layer, spec in zip(self.layers, self.specs, strict=True):
            streams, kept, operands = layer.go_on(streams, context, spec, before)
            after += kept
            each.append((streams, operands))
        return end(streams, x_BnD.dtype), tuple(after), each


def first_state(other: OtherSequence | None, number: int) -> State | None:
    """What the state of layer `number` begins with; None where that is not told."""
    if other is None or other.first_BNU is None:
        return None
    return State(tuple(x_BNU[:, number] for x_BNU in other.first_BNU), jnp.ones(len(other.segments_BM), jnp.int32))


def cache_specs(config: ModelConfig, max_length: int) -> tuple[CacheSpec, ...]:
    """What each layer's cache is for; raises InputError where an attention cannot go on token by token.

    A model with segment memory reads the `memory_length` tokens before each one, as if every segment were one token.
    """
    heads, width = config.heads, config.head_width
    mechanisms = layer_mechanisms(config)
    allowed = '0 where text is made token by token, which reads the last tokens alone'
    require(not config.compressed_length, 'model.compressed_length', config.compressed_length, allowed)
    if config.memory_length:
        window = Window(config.memory_length - config.same_length)
        mechanisms = tuple(mechanism.within(window) for mechanism in mechanisms)
    return tuple(CacheSpec(mechanism, heads, heads, width, max_length) for mechanism in mechanisms)


def read_prompt(
    cached: CachedDecoder, state: DecodeState, tokens_BL: Array, segments_BL: Array, piece: int = PIECE
) -> DecodeState:
    """The state after a prompt of any length, read `piece` tokens at a time; padding at the end of rows alone."""
    extra = -tokens_BL.shape[1] % piece

    def cut(x_BL: Array) -> Array:
        padded = jnp.pad(x_BL, ((0, 0), (0, extra)))
        return padded.reshape(len(x_BL), -1, piece).swapaxes(0, 1)

    def read(state: DecodeState, tokens_and_segments: tuple[Array, Array]) -> tuple[DecodeState, None]:
        return cached(state, *tokens_and_segments)[1], None

    return jax.lax.scan(read, state, (cut(tokens_BL), cut(segments_BL)))[0]


def read_but_last(
    cached: CachedDecoder, state: DecodeState, tokens_BL: Array, segments_BL: Array, piece: int = PIECE
) -> tuple[DecodeState, Array]:
    """The state before the last token of each prompt, and that token, int32 [B]; as `read_prompt` otherwise."""
    if tokens_BL.shape[1] == 1:
        return state, tokens_BL[:, 0]
    last_B1 = (segments_BL != 0).sum(axis=1, keepdims=True) - 1
    before_BL = jnp.where(jnp.arange(tokens_BL.shape[1])[None] < last_B1, segments_BL, 0)
    state = read_prompt(cached, state, tokens_BL, before_BL, piece)
    return state, jnp.take_along_axis(tokens_BL, last_B1, axis=1)[:, 0]
