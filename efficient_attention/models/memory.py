"""Segment memory: what the layers of a decoder keep of the text before a segment (Dai et al. 2019, arXiv 1901.02860).

A layer's keys and values come from its input for this segment and, before it, from its inputs for the M tokens before,
into which no gradient flows. Memory goes in and comes out of a call as arrays; nothing is kept on a module.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import spread
from efficient_attention.config.model import ModelConfig


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

    def after(self, inputs_NBLD: Array, segments_BL: Array) -> 'Memory':
        """The memory after a segment with these inputs of its layers: the last M tokens of both."""
        new_BNLD = inputs_NBLD.swapaxes(0, 1).astype(self.states_BNMD.dtype)
        states = jnp.concatenate([self.states_BNMD, new_BNLD], axis=2)  # of M + L tokens, as the segments
        segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        start = segments_BL.shape[1]
        return Memory(jax.lax.stop_gradient(spread(states[:, :, start:], 'BNMD')), segments[:, start:])


def empty_memory(config: ModelConfig, rows: int) -> Memory:
    """The memory before any text, of `config.memory_length` tokens."""
    length = config.memory_length
    states_BNMD = jnp.zeros((rows, config.layers, length, config.width), config.compute_dtype)
    return Memory(states_BNMD, jnp.zeros((rows, length), jnp.int32))
