"""Segment memory: what the layers of a decoder keep of the text before a segment (Dai et al. 2019, arXiv 1901.02860).

An attention's keys and values come from its input for this segment and, before it, from its inputs for the M tokens
before, into which no gradient flows. Tokens before these may stay in fewer slots (Rae et al. 2019, arXiv 1911.05507).
A recurrent layer goes on from its state. Memory goes in and comes out of a call as arrays; nothing is kept on a module.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import spread
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.context import CompressedLayerMemory, LayerMemory, OtherSequence
from efficient_attention.recurrence.cell import States
from efficient_attention.recurrence.cells import cell_of
from efficient_attention.recurrence.recur import State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """The inputs of N layers for the last M tokens of each row's text, oldest first.

    A token is read by those of its own segment alone, so a text ends where the segment's number changes. Segment 0 is
    where there is nothing yet.
    """

    states_BNMD: Array
    segments_BM: Array

    @property
    def length(self) -> int:
        """How many tokens of each row are kept, M."""
        return self.segments_BM.shape[1]

    def by_layer(self) -> Array:
        """What differs between layers, which are its first axis."""
        return self.states_BNMD.swapaxes(0, 1)

    def of_layer(self, states_BMD: Array) -> LayerMemory:
        """One layer's, from its part of `by_layer`."""
        return LayerMemory(states_BMD, self.segments_BM)

    def after(self, kept: tuple[Array, None], segments_BL: Array) -> 'Memory':
        """The memory after a segment, from the inputs of its layers [N, B, L, D]: the last M tokens of both."""
        inputs_NBLD, _ = kept
        new_BNLD = inputs_NBLD.swapaxes(0, 1).astype(self.states_BNMD.dtype)
        states = jnp.concatenate([self.states_BNMD, new_BNLD], axis=2)  # of M + L tokens, as the segments
        segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        start = segments_BL.shape[1]
        return Memory(jax.lax.stop_gradient(spread(states[:, :, start:], 'BNMD')), segments[:, start:])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CompressedMemory:
    """Slots that older tokens were compressed to, in front of the last M tokens.

    A slot is read by the tokens of its segment alone, as a token is.
    """

    compressed: Memory
    recent: Memory

    def by_layer(self) -> tuple[Array, Array]:
        """What differs between layers, which are its first axis."""
        return self.compressed.by_layer(), self.recent.by_layer()

    def of_layer(self, states: tuple[Array, Array]) -> CompressedLayerMemory:
        """One layer's, from its part of `by_layer`."""
        compressed_BMD, recent_BMD = states
        return CompressedLayerMemory(self.compressed.of_layer(compressed_BMD), self.recent.of_layer(recent_BMD))

    def after(self, kept: tuple[Array, Array], segments_BL: Array) -> 'CompressedMemory':
        """The memory after a segment, from the inputs of its layers and what the tokens that left became.

        These are [N, B, L, D] and [N, B, L / c, D]. A slot has the segment of its newest token.
        """
        inputs_NBLD, new_NBMD = kept
        length, slots = segments_BL.shape[1], new_NBMD.shape[2]
        known = self.recent.segments_BM
        left_BL = jnp.concatenate([known, segments_BL.astype(known.dtype)], axis=1)[:, :length]
        rate = length // slots
        compressed = self.compressed.after((new_NBMD, None), left_BL[:, rate - 1 :: rate])
        return CompressedMemory(compressed, self.recent.after((inputs_NBLD, None), segments_BL))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StateMemory:
    """The states of N recurrent layers after the last token of each row, [B, N, U] of each array and direction.

    A text goes on where its segment is that of the last token; 0 is where there was none yet.
    """

    vectors_BNU: tuple[States, ...]
    segments_B: Array

    def by_layer(self) -> tuple[States, ...]:
        """What differs between layers, which are its first axis."""
        return jax.tree.map(lambda x_BNU: x_BNU.swapaxes(0, 1), self.vectors_BNU)

    def of_layer(self, vectors_BU: tuple[States, ...]) -> tuple[State, ...]:
        """One layer's, from its part of `by_layer`: the state of each direction."""
        return tuple(State(vectors, self.segments_B) for vectors in vectors_BU)

    def after(self, states: tuple[State, ...], segments_BL: Array) -> 'StateMemory':  # noqa: ARG002  as `Memory`
        """The memory after a segment that left these states, with layers as the first axis."""
        vectors = jax.tree.map(lambda x_NBU: x_NBU.swapaxes(0, 1), tuple(state.vectors for state in states))
        return StateMemory(vectors, states[0].segments_B[0])


AnyMemory = Memory | CompressedMemory | StateMemory


def first_memory(other: OtherSequence) -> StateMemory | None:
    """The memory of layers that begin with the states of another sequence; None where it brings none."""
    if other.first_BNU is None:
        return None
    return StateMemory((other.first_BNU,), jnp.ones(len(other.segments_BM), jnp.int32))


def empty_states(config: ModelConfig, rows: int) -> StateMemory:
    """The states of recurrent layers before any text."""
    count = cell_of(config.cell, config.width, config.units).states
    zeros = (jnp.zeros((rows, config.layers, config.units)),) * count
    return StateMemory((zeros,) * (1 + config.bidirectional), jnp.zeros(rows, jnp.int32))


def empty_memory(config: ModelConfig, rows: int) -> AnyMemory:
    """The memory before any text, of `config.memory_length` tokens, or of states.

    In front of the tokens are `config.compressed_length` slots, if any.
    """
    if config.cell != 'none':
        return empty_states(config, rows)
    recent = empty_slots(config, rows, config.memory_length)
    if not config.compressed_length:
        return recent
    return CompressedMemory(empty_slots(config, rows, config.compressed_length), recent)


def empty_slots(config: ModelConfig, rows: int, length: int) -> Memory:
    """A memory of so many tokens, or slots, where there is nothing yet."""
    states_BNMD = jnp.zeros((rows, config.layers, length, config.width), config.compute_dtype)
    return Memory(states_BNMD, jnp.zeros((rows, length), jnp.int32))
