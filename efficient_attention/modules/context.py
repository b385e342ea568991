"""A layer's inputs besides its hidden states: segments, positions, PRNG keys, terms of the logits, memory, a source."""

import dataclasses
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.device_mesh import spread
from efficient_attention.attention.request import CallOptions
from efficient_attention.recurrence.cell import States
from efficient_attention.recurrence.recur import State


class Biases(NamedTuple):
    """u and v [H, K] of relative 'transformer_xl', added to the queries that meet contents and distances."""

    content_HK: Array
    distance_HK: Array


class Terms(NamedTuple):
    """Differentiable inputs that all layers of a stack share; `Context` has fields of the same names."""

    bias: Any = None
    distance_biases: Biases | None = None
    learned: dict[str, Array] | None = None


class LayerMemory(NamedTuple):
    """What a layer read before this segment, [B, M, D], and the segment of each token [B, M]; 0 = nothing."""

    states_BMD: Array
    segments_BM: Array

    def before(self, options: CallOptions, segments_BL: Array) -> CallOptions:
        """The options of `attend` for a segment's queries, whose keys are those of the memory and of the segment."""
        before, new = self.segments_BM.shape[1], segments_BL.shape[1]
        places = np.arange(before + new, dtype=np.int32)[None]
        key_segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        return dataclasses.replace(
            options, key_segments=key_segments, query_positions=places[:, before:], key_positions=places
        )


class CompressedLayerMemory(NamedTuple):
    """What a layer read before this segment: in front the slots that tokens were compressed to, then tokens."""

    compressed: LayerMemory
    recent: LayerMemory

    def joined(self) -> LayerMemory:
        """All slots in a row, each of which is a position."""
        states_BMD = jnp.concatenate([self.compressed.states_BMD, self.recent.states_BMD], axis=1)
        segments_BM = jnp.concatenate([self.compressed.segments_BM, self.recent.segments_BM], axis=1)
        return LayerMemory(spread(states_BMD, 'BMD'), segments_BM)

    def leaving(self, x_BLD: Array, segments_BL: Array) -> LayerMemory:
        """The oldest L tokens of the recent ones and of a segment with this input, which makes them leave."""
        (states_BMD, segments_BM), count = self.recent, segments_BL.shape[1]
        if segments_BM.shape[1] < count:
            states_BMD = jnp.concatenate([states_BMD, x_BLD.astype(states_BMD.dtype)], axis=1)
            segments_BM = jnp.concatenate([segments_BM, segments_BL.astype(segments_BM.dtype)], axis=1)
        return LayerMemory(spread(states_BMD[:, :count], 'BLD'), segments_BM[:, :count])


AttentionMemory = LayerMemory | CompressedLayerMemory


class OtherSequence(NamedTuple):
    """What a cross-attention reads, such as an encoder's output: vectors [B, M, D], and the segment of each [B, M].

    A query reads those of its segment; segment 0 is padding. Windows go by positions, 0, 1, ... where there are none.
    Recurrent layers that read it begin with `first_BNU`, where it is there: the arrays of a state, of all N layers.
    """

    states_BMD: Array
    segments_BM: Array
    positions_BM: Array | None = None
    first_BNU: States | None = None


class Context(NamedTuple):
    """What a layer reads beside its input.

    Args:
        segments_BL: 0 = padding, 1, 2, ... = packed examples.
        positions_BL: for rotary positions, and for the windows of a cross-attention; patterns of self-attention go by
            the place in the row.
        rng: a key, or one a row; turns dropout on.
        mechanism_rng: a key for mechanisms that draw at random.
        is_global_BL: tokens that read all and are read by all, with projections of their own; at most
            `config.global_tokens` a row.
        bias: added to the logits of self-attention: an array or a function of places, as `attend` takes it.
        distance_biases: u and v of relative 'transformer_xl', where all layers share them.
        learned: arrays that a mechanism learns and all layers share, by name.
        memory: what this layer read before: keys and values come from it and then from the input; rotary positions
            then count from its first token. Of a recurrent layer its states, one for each direction.
        other: another sequence, which a cross-attention reads.
        state_rng: PRNG key of dropout of the state, where `rng` is specific to one position.
        product_BLX: the product of a recurrent sub-layer's input, where it does not come from the input alone.
    """

    segments_BL: Array
    positions_BL: Array
    rng: Array | None = None
    mechanism_rng: Array | None = None
    is_global_BL: Array | None = None
    bias: Any = None
    distance_biases: Biases | None = None
    learned: dict[str, Array] | None = None
    memory: AttentionMemory | tuple[State, ...] | None = None
    other: OtherSequence | None = None
    state_rng: Array | None = None
    product_BLX: Array | None = None

    def of_layer(self, number: int | Array, memory: AttentionMemory | tuple[State, ...] | None = None) -> 'Context':
        """The same for layer `number` of a stack: with its memory, and the number folded into the PRNG keys."""
        rngs = (fold(rng, number) for rng in (self.rng, self.mechanism_rng, self.state_rng))
        rng, mechanism_rng, state_rng = rngs
        return self._replace(rng=rng, mechanism_rng=mechanism_rng, state_rng=state_rng, memory=memory)

    def with_terms(self, terms: Terms) -> 'Context':
        """The same with the terms that a stack adds."""
        return self._replace(bias=terms.bias, distance_biases=terms.distance_biases, learned=terms.learned)


class ContextOptions(TypedDict, total=False):
    """The fields of `Context` but its first two, as keyword arguments of a layer and its sub-layers."""

    rng: Array | None
    mechanism_rng: Array | None
    is_global_BL: Array | None
    bias: Any
    distance_biases: Biases | None
    learned: dict[str, Array] | None
    memory: AttentionMemory | tuple[State, ...] | None
    other: OtherSequence | None
    state_rng: Array | None
    product_BLX: Array | None


def given(other: OtherSequence | None, reader: str) -> OtherSequence:
    """The other sequence; raises ValueError where the call brings none to what reads it."""
    if other is None:
        raise ValueError(f'{reader} reads another sequence; give it as `other`')
    return other


def fold(rng: Array | None, number: int | Array) -> Array | None:
    """An independent key (or one a row, for keys [B]); None stays None, which means no dropout."""
    if rng is None:
        return None
    return (
        jax.random.fold_in(rng, number) if rng.ndim == 0 else jax.vmap(lambda key: jax.random.fold_in(key, number))(rng)
    )
