"""Segment memory: what the layers of a decoder keep of the text before a segment (Dai et al. 2019, arXiv 1901.02860).

A layer's keys and values come from its input for this segment and, before it, from its inputs for the M tokens before,
into which no gradient flows. Memory goes in and comes out of a call as arrays; nothing is kept on a module.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.errors import InputError
from efficient_attention.models.config import ModelConfig


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
        """M."""
        return self.segments_BM.shape[1]

    def after(self, inputs_NBLD: Array, segments_BL: Array) -> 'Memory':
        """The memory after a segment with these inputs of its layers: the last M tokens of both."""
        states = jnp.concatenate([self.states_BNMD, inputs_NBLD.swapaxes(0, 1).astype(self.states_BNMD.dtype)], axis=2)
        segments = jnp.concatenate([self.segments_BM, segments_BL.astype(self.segments_BM.dtype)], axis=1)
        start = segments_BL.shape[1]
        return Memory(jax.lax.stop_gradient(states[:, :, start:]), segments[:, start:])


def empty_memory(config: ModelConfig, rows: int) -> Memory:
    """The memory before any text, of `config.memory_length` tokens."""
    length = config.memory_length
    states = jnp.zeros((rows, config.layers, length, config.width), config.compute_dtype)
    return Memory(states, jnp.zeros((rows, length), jnp.int32))


def check_memory(config: ModelConfig) -> None:
    """Raises InputError where the config asks for memory, or for relative attention, that its layers cannot have."""
    if config.relative == 'transformer_xl' and not all(mechanism.is_band for mechanism in config.mechanisms):
        raise InputError(
            f"model.relative is 'transformer_xl'; model.attention {config.attention!r} must be causal or "
            'causal & window(w)'
        )
    if config.memory_length:
        check_keeps_memory(config)


def check_keeps_memory(config: ModelConfig) -> None:
    """Raises InputError unless the layers can read what was before a segment as they read the segment."""
    asked = f'model.memory_length is {config.memory_length}; ' if config.memory_length else ''
    if not all(mechanism.goes_by_distance for mechanism in config.mechanisms):
        raise InputError(
            f'{asked}model.attention {config.attention!r} keeps no memory: use causal, window or strided attention, '
            'which go by distance'
        )
    if config.stack != 'plain':
        raise InputError(f'{asked}a {config.stack} stack (model.stack) keeps no memory')
    if config.positions != 'none' or config.relative in ('tupe', 'tupe_r'):
        raise InputError(
            f'{asked}positions must go by distance (model.positions none, with model.relative or model.rotary), as '
            'those of a text in memory are not known'
        )
