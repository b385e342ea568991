"""Segment memory: cached layer inputs or recurrent states of earlier segments (Dai et al. 2019, arXiv 1901.02860).

Keys and values of an attention come from the layer's inputs for this segment and for the M tokens before it. No
gradient flows into the memory. Older tokens may be compressed to fewer positions (Rae et al. 2019, arXiv 1911.05507). A
recurrent layer continues from its state. Memory is an argument and a result of each call; modules store none.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.context import CompressedLayerMemory, EncodedSource, LayerMemory
from efficient_attention.recurrence.cell import States
from efficient_attention.recurrence.cells import cell_of
from efficient_attention.recurrence.recur import State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SegmentMemory:
    """The inputs of N layers for the last M tokens of each row, oldest first.

    A query reads only memory tokens of its segment, so a text ends where the segment number changes. Segment 0 marks
    empty positions.
    """

    states_BNMD: Array
    segments_BM: Array

    @property
    def length(self) -> int:
        """The number of tokens per row, M."""
        return self.segments_BM.shape[1]

    def per_layer_arrays(self) -> Array:
        """Returns the layers' inputs with the layer axis first."""
        return self.states_BNMD.swapaxes(0, 1)

    def layer_memory(self, states_BMD: Array) -> LayerMemory:
        """Returns the memory of one layer from that layer's entry of `by_layer`."""
        return LayerMemory(states_BMD, self.segments_BM)

    def next_memory(self, kept: tuple[Array, None], segments_BL: Array) -> 'SegmentMemory':
        """Returns the memory after a segment: the last M tokens of the old memory and the segment.

        The layers' inputs for the segment are [N, B, L, D].
        """
        inputs_NBLD, _ = kept
        new_BNLD = inputs_NBLD.swapaxes(0, 1).astype(self.states_BNMD.dtype)
        states = jnp.concatenate([self.states_BNMD, new_BNLD], axis=2)  # M + L tokens, like `segments`
        segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        start = segments_BL.shape[1]
        return SegmentMemory(
            jax.lax.stop_gradient(shard_activations(states[:, :, start:], 'BNMD')), segments[:, start:]
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompressedMemory:
    """A memory of compressed positions for older tokens, followed by the last M tokens.

    A query reads only compressed positions and tokens of its segment.
    """

    compressed: SegmentMemory
    recent: SegmentMemory

    def per_layer_arrays(self) -> tuple[Array, Array]:
        """Returns the compressed and the recent inputs with the layer axis first."""
        return self.compressed.per_layer_arrays(), self.recent.per_layer_arrays()

    def layer_memory(self, states: tuple[Array, Array]) -> CompressedLayerMemory:
        """Returns the memory of one layer from that layer's entry of `by_layer`."""
        compressed_BMD, recent_BMD = states
        return CompressedLayerMemory(self.compressed.layer_memory(compressed_BMD), self.recent.layer_memory(recent_BMD))

    def next_memory(self, kept: tuple[Array, Array], segments_BL: Array) -> 'CompressedMemory':
        """Returns the memory after a segment: newest compressed positions and tokens.

        `kept` has the layers' inputs [N, B, L, D] and the compressed evicted tokens [N, B, L / c, D]. A compressed
        position has the segment of its newest token.
        """
        inputs_NBLD, new_NBMD = kept
        length, slots = segments_BL.shape[1], new_NBMD.shape[2]
        known = self.recent.segments_BM
        left_BL = jnp.concatenate([known, segments_BL.astype(known.dtype)], axis=1)[:, :length]
        rate = length // slots
        compressed = self.compressed.next_memory((new_NBMD, None), left_BL[:, rate - 1 :: rate])
        return CompressedMemory(compressed, self.recent.next_memory((inputs_NBLD, None), segments_BL))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StateMemory:
    """The states of N recurrent layers after each row's last token: [B, N, U] per state array and direction.

    A text continues if its segment equals the last token's segment; 0 = no token yet.
    """

    vectors_BNU: tuple[States, ...]
    segments_B: Array

    def per_layer_arrays(self) -> tuple[States, ...]:
        """Returns the states with the layer axis first."""
        return jax.tree.map(lambda x_BNU: x_BNU.swapaxes(0, 1), self.vectors_BNU)

    def layer_memory(self, vectors_BU: tuple[States, ...]) -> tuple[State, ...]:
        """Returns the states of one layer, one per direction, from that layer's entry of `by_layer`."""
        return tuple(State(vectors, self.segments_B) for vectors in vectors_BU)

    def next_memory(self, states: tuple[State, ...], segments_BL: Array) -> 'StateMemory':  # noqa: ARG002  as `Memory`
        """Returns the memory after a segment from its final states, whose first axis is the layers."""
        vectors = jax.tree.map(lambda x_NBU: x_NBU.swapaxes(0, 1), tuple(state.vectors for state in states))
        return StateMemory(vectors, states[0].segments_B[0])


AnyMemory = SegmentMemory | CompressedMemory | StateMemory


def first_memory(other: EncodedSource) -> StateMemory | None:
    """Returns the recurrent memory that starts with another sequence's states; None if it has no states."""
    if other.first_BNU is None:
        return None
    return StateMemory((other.first_BNU,), jnp.ones(len(other.segments_BM), jnp.int32))


def empty_states(config: ModelConfig, rows: int) -> StateMemory:
    """Returns the states of recurrent layers before any text."""
    count = cell_of(config.cell, config.width, config.recurrent_state_width).states
    zeros = (jnp.zeros((rows, config.layers, config.recurrent_state_width)),) * count
    return StateMemory((zeros,) * (1 + config.bidirectional), jnp.zeros(rows, jnp.int32))


def empty_memory(config: ModelConfig, rows: int) -> AnyMemory:
    """Returns the memory before any text: `config.memory_length` empty tokens, or recurrent states.

    `config.compressed_length` compressed positions precede the tokens, if it is above 0.
    """
    if config.cell != 'none':
        return empty_states(config, rows)
    recent = empty_slots(config, rows, config.memory_length)
    if not config.compressed_length:
        return recent
    return CompressedMemory(empty_slots(config, rows, config.compressed_length), recent)


def empty_slots(config: ModelConfig, rows: int, length: int) -> SegmentMemory:
    """Returns a memory of `length` empty positions."""
    states_BNMD = jnp.zeros((rows, config.layers, length, config.width), config.compute_dtype)
    return SegmentMemory(states_BNMD, jnp.zeros((rows, length), jnp.int32))
