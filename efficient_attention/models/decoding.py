"""A decoder that goes on with a text piece by piece, from caches instead of reading everything again.

Logits equal those of the decoder on the whole text: positions are the numbers of a row's tokens, and padding, which may
stand at the end of any piece, counts for nothing. So rows of unequal lengths go on side by side.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.tree_util import Partial

from efficient_attention.attention.cache import Cache, CacheSpec, NewTokens, decode, init_cache
from efficient_attention.attention.patterns import Window
from efficient_attention.attention.relative import Relative, relative_logits
from efficient_attention.models.config import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import mechanism_rng
from efficient_attention.models.stack import layer_mechanisms
from efficient_attention.modules.layer import Layer, fold

PIECE = 128  # tokens of a prompt that are read at once: their scores are [piece, cache + piece]


class DecodeState(NamedTuple):
    """What is kept of the tokens read so far: a cache for each layer, and their number in each row, int32 [B]."""

    caches: tuple[Cache, ...]
    length_B: Array


class CachedDecoder:
    """A decoder's parameters, a layer at a time, and what its caches are for; made inside the program that uses it.

    Args:
        decoder: with any strategy of its stack.
        max_length: most tokens of a row, the prompt's included; the memory of caches grows with it only where the
            attention may read that far back.

    Raises:
        InputError: an attention of the config cannot go on token by token.
    """

    def __init__(self, decoder: Decoder, max_length: int) -> None:
        self.decoder = decoder
        self.config = decoder.config
        self.specs = cache_specs(self.config, max_length)
        self.layers = separate_layers(decoder)
        position_bias = decoder.stack.position_bias
        self.bias = None if position_bias is None else position_bias.function()

    def init_state(self, batch: int, step: int = 0) -> DecodeState:
        """The state before any token; `step` is the training step whose random features the layers draw."""
        rng = mechanism_rng(self.config, step)
        caches = (
            init_cache(spec, batch, self.config.compute_dtype, fold(rng, number))
            for number, spec in enumerate(self.specs)
        )
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
        segments_Bn = jnp.ones_like(tokens_Bn) if segments_Bn is None else segments_Bn
        positions_Bn = state.length_B[:, None] + jnp.arange(tokens_Bn.shape[1], dtype=jnp.int32)[None]
        # Padding may reach beyond the tables of positions, and a weight of 0 would not undo the NaN that stands there.
        positions_Bn = jnp.where(segments_Bn != 0, positions_Bn, 0)
        x_BnD = self.decoder.embeddings(tokens_Bn, jnp.zeros_like(tokens_Bn), positions_Bn)
        if self.config.position_limit is not None:
            is_beyond_Bn = positions_Bn >= self.config.position_limit
            x_BnD = jnp.where(is_beyond_Bn[..., None], jnp.nan, x_BnD)
        x_BnD, caches = self.run_layers(x_BnD, state.caches, positions_Bn, segments_Bn)
        x_BnD = x_BnD if self.decoder.norm is None else self.decoder.norm(x_BnD)
        length_B = state.length_B + (segments_Bn != 0).sum(axis=1, dtype=jnp.int32)
        return self.decoder.head(x_BnD, self.decoder.embeddings.token), DecodeState(caches, length_B)

    def run_layers(
        self, x_BnD: Array, caches: tuple[Cache, ...], positions_Bn: Array, segments_Bn: Array
    ) -> tuple[Array, tuple[Cache, ...]]:
        """The last layer's output and the caches with the new tokens; a reversible stack's two streams are float32."""
        is_reversible, is_post = self.config.stack == 'reversible', self.config.norm == 'post'
        after: list[Cache] = []
        first = second = x_BnD.astype(jnp.float32) if is_reversible else x_BnD
        for layer, spec, cache in zip(self.layers, self.specs, caches, strict=True):
            read = layer.attention_norm(second) if not is_post else second
            attended, cache = attend_cached(layer, spec, cache, read, positions_Bn, segments_Bn, self.bias)
            after.append(cache)
            first = first + attended.astype(first.dtype)
            first = layer.attention_norm(first) if is_post else first
            fed = layer.feed_forward_branch(first)
            if is_reversible:
                second = second + fed.astype(second.dtype)
            else:
                first = second = layer.feed_forward_norm(first + fed) if is_post else first + fed
        out_BnD = 0.5 * (first + second) if is_reversible else second
        return out_BnD.astype(x_BnD.dtype), tuple(after)


def cache_specs(config: ModelConfig, max_length: int) -> tuple[CacheSpec, ...]:
    """What each layer's cache is for; raises InputError where an attention cannot go on token by token.

    A model with segment memory reads the `memory_length` tokens before each one, as if every segment were one token.
    """
    heads, width = config.heads, config.head_width
    mechanisms = layer_mechanisms(config)
    if config.memory_length:
        window = Window(config.memory_length - config.same_length)
        mechanisms = tuple(mechanism.within(window) for mechanism in mechanisms)
    return tuple(CacheSpec(mechanism, heads, heads, width, max_length) for mechanism in mechanisms)


def attend_cached(
    layer: Layer,
    spec: CacheSpec,
    cache: Cache,
    x_BnD: Array,
    positions_Bn: Array,
    segments_Bn: Array,
    bias: Any,
) -> tuple[Array, Cache]:
    """The attention sub-layer's output for new tokens, which read the cache and themselves, and the cache after."""
    query, key, value = layer.attention.project(x_BnD, positions_Bn, spec.mechanism)
    term: Any = bias
    if layer.attention.distances is not None:
        distances = spec.mechanism.keys_back(spec.max_length)
        query, relative = layer.attention.distances(query, distances, bias)
        term = Partial(relative_term, relative)
    out_BnHK, cache = decode(spec, cache, NewTokens(query, key, value, positions_Bn, segments_Bn), bias=term)
    return layer.attention.join_heads(out_BnHK), cache


def relative_term(relative: Relative, query_positions_b1n1: Array, key_positions_b11M: Array) -> Array:
    """The relative term of the logits [B, H, n, M], as a bias function of positions."""
    return relative_logits(relative, query_positions_b1n1[:, 0, :, 0], key_positions_b11M[:, 0, 0])


def separate_layers(decoder: Decoder) -> tuple[Layer, ...]:
    """The layers of the decoder's stack one by one, whether their parameters are stacked or shared by all."""
    layers, config = decoder.stack.layers, decoder.config
    if not config.is_stacked:
        return (layers,) * config.layers
    graph, parameters = nnx.split(layers)
    return tuple(
        nnx.merge(graph, jax.tree.map(lambda leaf, number=number: leaf[number], parameters))
        for number in config.layer_numbers
    )


def read_prompt(
    cached: CachedDecoder, state: DecodeState, tokens_BL: Array, segments_BL: Array, piece: int = PIECE
) -> DecodeState:
    """The state after a prompt of any length, read `piece` tokens at a time; padding at the end of rows alone."""
    extra = -tokens_BL.shape[1] % piece

    def cut(x_BL: Array) -> Array:
        padded = jnp.pad(x_BL, ((0, 0), (0, extra)))
        return padded.reshape(len(x_BL), -1, piece).swapaxes(0, 1)

    def read(state: DecodeState, part: tuple[Array, Array]) -> tuple[DecodeState, None]:
        return cached(state, *part)[1], None

    return jax.lax.scan(read, state, (cut(tokens_BL), cut(segments_BL)))[0]
