"""Segment memory: keeps the layer inputs or recurrent states of earlier text segments for the next segment (Dai et al.
2019, arXiv 1901.02860).

Keys and values of an attention come from the layer's inputs for this segment and for the M tokens before it. No
gradient flows into the memory. Older tokens may be compressed to fewer positions (Rae et al. 2019, arXiv 1911.05507). A
recurrent layer continues from its last state. Each call receives and returns the memory; modules do not store it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.layer_context import CompressedLayerMemory, EncodedSource, LayerMemory
from efficient_attention.recurrence.cell_interface import States
from efficient_attention.recurrence.cells import find_cell
from efficient_attention.recurrence.run_cell import RecurrentState


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SegmentMemory:
    """The inputs of all N layers for the last M tokens of each batch row, oldest token first.

    A query reads only memory tokens of its segment, so a text ends where the segment number changes. Segment 0 marks
    empty positions.
    """

    states_BNMD: Array
    segments_BM: Array

    @property
    def length(self) -> int:
        """The number of memory tokens per batch row, M."""
        return self.segments_BM.shape[1]

    def per_layer_arrays(self) -> Array:
        """Returns the stored layer inputs with the layer axis first, [N, B, M, D]."""
        return self.states_BNMD.swapaxes(0, 1)

    def layer_memory(self, states_BMD: Array) -> LayerMemory:
        """Returns the memory of one layer, from this layer's slice of `per_layer_arrays`."""
        return LayerMemory(states_BMD, self.segments_BM)

    def next_memory(self, kept: tuple[Array, None], segments_BL: Array) -> 'SegmentMemory':
        """Returns the memory after a segment: the last M tokens of the old memory followed by the segment.

        The layers' inputs for the segment are [N, B, L, D].
        """
        inputs_NBLD, _ = kept
        new_BNLD = inputs_NBLD.swapaxes(0, 1).astype(self.states_BNMD.dtype)
        states = jnp.concatenate([self.states_BNMD, new_BNLD], axis=2)  # M + L tokens
        segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        start = segments_BL.shape[1]
        return SegmentMemory(
            jax.lax.stop_gradient(shard_activations(states[:, :, start:], 'BNMD')), segments[:, start:]
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompressedMemory:
    """A memory with compressed positions for older tokens, followed by the last M tokens.

    A query reads only the compressed positions and tokens that have its segment number.
    """

    compressed: SegmentMemory
    recent: SegmentMemory

    def per_layer_arrays(self) -> tuple[Array, Array]:
        """Returns the compressed positions and the layer inputs of recent tokens, each with the layer axis first."""
        return self.compressed.per_layer_arrays(), self.recent.per_layer_arrays()

    def layer_memory(self, states: tuple[Array, Array]) -> CompressedLayerMemory:
        """Returns the memory of one layer, from this layer's slices of `per_layer_arrays`."""
        compressed_BMD, recent_BMD = states
        return CompressedLayerMemory(self.compressed.layer_memory(compressed_BMD), self.recent.layer_memory(recent_BMD))

    def next_memory(self, kept: tuple[Array, Array], segments_BL: Array) -> 'CompressedMemory':
        """Returns the memory after a segment, with the newest compressed positions and the last M tokens.

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
    """The states of all N recurrent layers after the last token of each batch row: for each reading direction, arrays
    [B, N, U] of layers with U units.

    A text continues if its segment number equals the last token's segment number; 0 = no token yet.
    """

    vectors_BNU: tuple[States, ...]
    segments_B: Array

    def per_layer_arrays(self) -> tuple[States, ...]:
        """Returns the recurrent states of N layers of U units, with the layer axis first, [N, B, U] each."""
        return jax.tree.map(lambda x_BNU: x_BNU.swapaxes(0, 1), self.vectors_BNU)

    def layer_memory(self, vectors_BU: tuple[States, ...]) -> tuple[RecurrentState, ...]:
        """Returns the states of one recurrent layer, one per direction, from this layer's slice of
        `per_layer_arrays`.
        """
        return tuple(RecurrentState(vectors, self.segments_B) for vectors in vectors_BU)

    def next_memory(self, states: tuple[RecurrentState, ...], segments_BL: Array) -> 'StateMemory':  # noqa: ARG002  as in `SegmentMemory`
        """Returns the memory after a segment, from the layers' final states, whose first axis is the layer."""
        vectors = jax.tree.map(lambda x_NBU: x_NBU.swapaxes(0, 1), tuple(state.vectors for state in states))
        return StateMemory(vectors, states[0].segments_B[0])


AnyMemory = SegmentMemory | CompressedMemory | StateMemory


def first_memory(other: EncodedSource) -> StateMemory | None:
    """Returns a decoder's recurrent memory before its first token, from the encoded source; None if the source gives no
    initial states.
    """
    if other.first_BNU is None:
        return None
    return StateMemory((other.first_BNU,), jnp.ones(len(other.segments_BM), jnp.int32))


def empty_states(config: ModelConfig, rows: int) -> StateMemory:
    """Returns the states of all recurrent layers before the first token, which are zeros."""
    count = find_cell(config.cell, config.width, config.recurrent_state_width).states
    zeros = (jnp.zeros((rows, config.layers, config.recurrent_state_width)),) * count
    return StateMemory((zeros,) * (1 + config.bidirectional), jnp.zeros(rows, jnp.int32))


def empty_memory(config: ModelConfig, rows: int) -> AnyMemory:
    """Returns the memory before the first segment: empty token positions, or the zero states of recurrent layers.

    The memory has `config.compressed_length` compressed positions, followed by `config.memory_length` token positions.
    """
    if config.cell != 'none':
        return empty_states(config, rows)
    recent = empty_memory_positions(config, rows, config.memory_length)
    if not config.compressed_length:
        return recent
    return CompressedMemory(empty_memory_positions(config, rows, config.compressed_length), recent)


def empty_memory_positions(config: ModelConfig, rows: int, length: int) -> SegmentMemory:
    """Returns a segment memory with `length` empty positions."""
    states_BNMD = jnp.zeros((rows, config.layers, length, config.width), config.compute_dtype)
    return SegmentMemory(states_BNMD, jnp.zeros((rows, length), jnp.int32))
