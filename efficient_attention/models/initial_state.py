"""The first states of a recurrent decoder from the last ones of the encoder, layer by layer."""

import math

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import gathered
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.memory import StateMemory
from efficient_attention.modules.parameters import kernel_init
from efficient_attention.recurrence.cell import States
from efficient_attention.recurrence.registry import cell_of


class InitialState(nnx.Module):
    """The encoder's states as they are, or tanh(W s), with a matrix for each layer and array of a state.

    Bahdanau et al. 2014 (arXiv 1409.0473, A.2.2) map the state of the backward direction, which is that at the first
    token ('map_backward'); 'map' reads all directions. Luong et al. 2015 and Sutskever et al. 2014 copy.

    Args:
        config: of the encoder-decoder.
        rngs: of the initial values.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.form, self.layers = config.initial_state, config.layers
        self.kernel = None if self.form == 'copy' else self.drawn(config, rngs)

    def drawn(self, config: ModelConfig, rngs: nnx.Rngs) -> nnx.Param:
        """The initial values of the matrices."""
        encoder, decoder = config.encoder, config.decoder
        read = encoder.units * (1 + (self.form == 'map' and encoder.bidirectional))
        shape = (cell_of(decoder.cell, decoder.width, decoder.units).states, config.layers, read, decoder.units)
        return nnx.Param(kernel_init(config, 1.0 / math.sqrt(read))(rngs.params(), shape, jnp.float32))

    def __call__(self, last: StateMemory) -> States:
        """The arrays of the decoder's states before its first token, float32 [B, N, U]."""
        directions = last.vectors_BNU[-1:] if self.form == 'map_backward' else last.vectors_BNU
        if self.kernel is None:
            return directions[0]
        joined = [jnp.concatenate(arrays, axis=-1) for arrays in zip(*directions, strict=True)]
        kernel = gathered(jnp.asarray(self.kernel[...]), 'DE')
        return tuple(jnp.tanh(mapped(x_BNI, one)) for x_BNI, one in zip(joined, kernel, strict=True))


def mapped(x_BNI: Array, kernel_NIU: Array) -> Array:
    """Each layer's vectors times its matrix, [B, N, U]."""
    return jnp.einsum('bni,niu->bnu', x_BNI, kernel_NIU, preferred_element_type=jnp.float32)
