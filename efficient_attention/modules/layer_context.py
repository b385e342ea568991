"""Defines the inputs of a layer besides its hidden states: segments, positions, PRNG keys, logit terms, memory and
encoded source.
"""

import dataclasses
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.request import AnySegments, CallOptions, lengths_or_segments, segments_and_lengths
from efficient_attention.recurrence.cell_interface import States
from efficient_attention.recurrence.run_cell import RecurrentState


class ContentAndDistanceBiases(NamedTuple):
    """Transformer-XL's biases u and v, [H, K] each: u is added to queries for contents, v to queries for distances."""

    content_HK: Array
    distance_HK: Array


class SharedTerms(NamedTuple):
    """Inputs with gradients that all layers of a stack share, such as a position bias; `Context` has fields of the same
    names.
    """

    bias: Any = None
    distance_biases: ContentAndDistanceBiases | None = None
    learned: dict[str, Array] | None = None
    head_gates_NH: Array | None = None


class LayerMemory(NamedTuple):
    """The memory of one layer: its inputs [B, M, D] for M earlier tokens, and the segment numbers [B, M] of these
    tokens; segment 0 marks an empty position.
    """

    states_BMD: Array
    segments_BM: Array

    def memory_attend_options(self, options: CallOptions, segments_BL: Array) -> CallOptions:
        """Returns the options of `attend` with which a segment's queries read the keys of the memory and of the
        segment.
        """
        before, new = self.segments_BM.shape[1], segments_BL.shape[1]
        places = np.arange(before + new, dtype=np.int32)[None]
        key_segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        return dataclasses.replace(
            options, key_segments=key_segments, query_positions=places[:, before:], key_positions=places
        )


class CompressedLayerMemory(NamedTuple):
    """A layer's memory of earlier text segments: compressed vectors of older tokens, followed by recent tokens."""

    compressed: LayerMemory
    recent: LayerMemory

    def all_memory_slots(self) -> LayerMemory:
        """Returns compressed vectors and recent tokens as one memory, in which a compressed vector counts as
        one position, like a token."""
        states_BMD = jnp.concatenate([self.compressed.states_BMD, self.recent.states_BMD], axis=1)
        segments_BM = jnp.concatenate([self.compressed.segments_BM, self.recent.segments_BM], axis=1)
        return LayerMemory(shard_activations(states_BMD, 'BMD'), segments_BM)

    def evicted_tokens(self, x_BLD: Array, segments_BL: Array) -> LayerMemory:
        """Returns the L tokens that a new segment of L tokens evicts: the oldest tokens of the recent memory followed
        by the segment.
        """
        (states_BMD, segments_BM), count = self.recent, segments_BL.shape[1]
        if segments_BM.shape[1] < count:
            states_BMD = jnp.concatenate([states_BMD, x_BLD.astype(states_BMD.dtype)], axis=1)
            segments_BM = jnp.concatenate([segments_BM, segments_BL.astype(segments_BM.dtype)], axis=1)
        return LayerMemory(shard_activations(states_BMD[:, :count], 'BLD'), segments_BM[:, :count])


AttentionMemory = LayerMemory | CompressedLayerMemory


class EncodedSource(NamedTuple):
    """The encoded source that a cross-attention reads: an encoder's output [B, M, D] with the segment numbers [B, M].

    A query reads only vectors with its segment number; segment 0 is padding. Windows use the positions, which
    are 0, 1, ... by default. `first_BNU` holds the initial states of all N recurrent layers of a decoder; None = zeros.
    `lengths_B` holds the number of tokens per row if each row has one text; None = unknown.
    """

    states_BMD: Array
    segments_BM: Array
    positions_BM: Array | None = None
    first_BNU: States | None = None
    lengths_B: Array | None = None

    @property
    def attend_segments(self) -> AnySegments:
        """Returns the segments as row lengths if these are known, because the backend `cudnn` supports no segment
        numbers; otherwise as segment numbers.
        """
        return lengths_or_segments(self.segments_BM, self.lengths_B)


class Context(NamedTuple):
    """The inputs of a layer besides its hidden states, such as segments, positions and PRNG keys.

    Args:
        segments_BL: 0 = padding; 1, 2, ... = packed examples.
        positions_BL: for rotary positions and the windows of a cross-attention. Patterns of self-attention use the
            index in the row.
        rng: PRNG key, or one per row; enables dropout.
        mechanism_rng: PRNG key for random mechanisms.
        is_global_BL: marks global tokens, which read all tokens and which all tokens read, with separate projections;
            at most `config.global_tokens` per row.
        bias: added to the logits of self-attention: an array or a function of indices, as in `attend`.
        distance_biases: Transformer-XL's u and v, if all layers share them.
        learned: arrays that a mechanism learns and all layers share, by name.
        head_gates_NH: factors of each head's output in self-attention, by layer; None = 1 for all heads.
        memory: the layer's inputs of earlier segments. Keys and values come from the memory, then from the input.
            Rotary positions count from the first token of the memory. For a recurrent layer: its states, one per
            direction.
        other: the encoded source that cross-attention reads.
        state_rng: PRNG key for state dropout, if `rng` is specific to one position.
        product_BLX: input product of a recurrent sub-layer, if it has terms besides the input.
        lengths_B: the number of tokens per row if each row has one text followed by padding; None = unknown.
        layer: number of the layer, for mechanisms that stand for several layers.
    """

    segments_BL: Array
    positions_BL: Array
    rng: Array | None = None
    mechanism_rng: Array | None = None
    is_global_BL: Array | None = None
    bias: Any = None
    distance_biases: ContentAndDistanceBiases | None = None
    learned: dict[str, Array] | None = None
    head_gates_NH: Array | None = None
    memory: AttentionMemory | tuple[RecurrentState, ...] | None = None
    other: EncodedSource | None = None
    state_rng: Array | None = None
    product_BLX: Array | None = None
    lengths_B: Array | None = None
    layer: Array | int | None = None

    @property
    def attend_segments(self) -> AnySegments:
        """Returns the segments as row lengths if these are known, because the backend `cudnn` supports no segment
        numbers; otherwise as segment numbers.
        """
        return lengths_or_segments(self.segments_BL, self.lengths_B)

    def layer_context(
        self, number: int | Array, memory: AttentionMemory | tuple[RecurrentState, ...] | None = None
    ) -> 'Context':
        """Returns the context for layer `number`: with its number and memory, and with PRNG keys specific to the
        layer.
        """
        rngs = (fold_into_key(rng, number) for rng in (self.rng, self.mechanism_rng, self.state_rng))
        rng, mechanism_rng, state_rng = rngs
        return self._replace(rng=rng, mechanism_rng=mechanism_rng, state_rng=state_rng, memory=memory, layer=number)

    def with_shared_terms(self, terms: SharedTerms) -> 'Context':
        """Returns the context with the terms that all layers of a stack share, such as the position bias."""
        return self._replace(**terms._asdict())


class ContextOptions(TypedDict, total=False):
    """The types of all fields of `Context` except its first two, as keyword arguments of a layer and its sub-layers."""

    rng: Array | None
    mechanism_rng: Array | None
    is_global_BL: Array | None
    bias: Any
    distance_biases: ContentAndDistanceBiases | None
    learned: dict[str, Array] | None
    head_gates_NH: Array | None
    memory: AttentionMemory | tuple[RecurrentState, ...] | None
    other: EncodedSource | None
    state_rng: Array | None
    product_BLX: Array | None
    layer: Array | int | None


def make_context(segments: AnySegments, positions_BL: Array, **options: Unpack[ContextOptions]) -> Context:
    """Returns the context of rows with these segments, an array [B, L] or `Lengths`."""
    segments_BL, lengths_B = segments_and_lengths(segments, positions_BL.shape[1])
    return Context(segments_BL, positions_BL, **options)._replace(lengths_B=lengths_B)


def require_source(other: EncodedSource | None, reader: str) -> EncodedSource:
    """Returns the encoded source `other`; if it is None, raises ValueError, which names the module that reads the
    source.
    """
    if other is None:
        raise ValueError(f'{reader} reads another sequence; give it as `other`')
    return other


def fold_into_key(rng: Array | None, number: int | Array) -> Array | None:
    """Returns an independent PRNG key for `number`, or one key per row for keys [B]; None (no dropout) stays None."""
    if rng is None:
        return None
    return (
        jax.random.fold_in(rng, number) if rng.ndim == 0 else jax.vmap(lambda key: jax.random.fold_in(key, number))(rng)
    )
