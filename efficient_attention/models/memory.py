"""Segment memory: what the layers of a decoder keep of the text before a segment (Dai et al. 2019, arXiv 1901.02860).

An attention's keys and values come from its input for this segment and, before it, from its inputs for the M tokens
before, into which no gradient flows. A recurrent layer goes on from its state. Memory goes in and comes out of a call
as arrays; nothing is kept on a module.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import spread
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.context import LayerMemory, OtherSequence
from efficient_attention.recurrence.cell import States
from efficient_attention.recurrence.recur import State
from efficient_attention.recurrence.registry import cell_of


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

    def after(self, inputs_NBLD: Array, segments_BL: Array) -> 'Memory':
        """The memory after a segment with these inputs of its layers: the last M tokens of both."""
        new_BNLD = inputs_NBLD.swapaxes(0, 1).astype(self.states_BNMD.dtype)
        states = jnp.concatenate([self.states_BNMD, new_BNLD], axis=2)  # of M + L tokens, as the segments
        segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        start = segments_BL.shape[1]
        return Memory(jax.lax.stop_gradient(spread(states[:, :, start:], 'BNMD')), segments[:, start:])


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


AnyMemory = Memory | StateMemory


def before_layer(memory: AnyMemory | None, of_layer: Any) -> LayerMemory | tuple[State, ...] | None:
    """What a layer reads of the memory, from its part of `by_layer`."""
    return None if memory is None else memory.of_layer(of_layer)


def first_memory(other: OtherSequence | None) -> StateMemory | None:
    """The memory of layers that begin with the states of another sequence; None where it brings none."""
    if other is None or other.first_BNU is None:
        return None
    return StateMemory((other.first_BNU,), jnp.ones(len(other.segments_BM), jnp.int32))


def empty_states(config: ModelConfig, rows: int) -> StateMemory:
    """The states of recurrent layers before any text."""
    count = cell_of(config.cell, config.width, config.units).states
    zeros = (jnp.zeros((rows, config.layers, config.units)),) * count
    return StateMemory((zeros,) * (1 + config.bidirectional), jnp.zeros(rows, jnp.int32))


def empty_memory(config: ModelConfig, rows: int) -> AnyMemory:
    """The memory before any text, of `config.memory_length` tokens, or of states."""
    if config.cell != 'none':
        return empty_states(config, rows)
    length = config.memory_length
    states_BNMD = jnp.zeros((rows, config.layers, length, config.width), config.compute_dtype)
    return Memory(states_BNMD, jnp.zeros((rows, length), jnp.int32))
