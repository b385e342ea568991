"""Computes embeddings from token ids: sum of token, position and type embeddings, norm, dropout and projection."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.dropout import dropout
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import require
from efficient_attention.models.adaptive_softmax import token_table
from efficient_attention.modules.layer_constructors import embedding, linear, make_norm
from efficient_attention.modules.low_rank import with_low_rank
from efficient_attention.modules.positions import AxialPositions, sinusoid


class Embeddings(nnx.Module):
    """The sum of token, position and type embeddings, normalised, [B, L] -> [B, L, D] (Devlin et al. 2018, section 3).

    If `embedding_width` E is below D, the tables have width E and one dense layer maps E to D (Lan et al. 2019, arXiv
    1909.11942, section 3.1).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        width = config.embedding_width
        self.config = config
        self.token: Any = token_table(config, rngs)
        with_low_rank(self, config, ('token',), rngs)
        self.position = learned_positions(config, rngs)
        self.token_type = embedding(config, config.token_types, width, rngs) if config.token_types else None
        self.norm = make_norm(config, width, rngs) if config.embedding_norm else None
        self.projection = linear(config, width, config.width, rngs) if width != config.width else None

    @jax.named_scope('embeddings')
    def __call__(
        self, tokens_BL: Array, token_types_BL: Array, positions_BL: Array, *, rng: Array | None = None
    ) -> Array:
        """Returns the embedding of each token, [B, L, D]; a PRNG key `rng`, or one per row, enables dropout."""
        x_BLE = shard_activations(self.token(tokens_BL), 'BLE')
        if self.config.embedding_scale:
            x_BLE = x_BLE * math.sqrt(self.config.width)
        if self.position is not None:
            x_BLE = x_BLE + self.position(positions_BL + self.config.position_offset)
        elif self.config.positions == 'sinusoidal':
            x_BLE = x_BLE + sinusoid(positions_BL, self.config.embedding_width).astype(x_BLE.dtype)
        if self.token_type is not None:
            x_BLE = x_BLE + self.token_type(token_types_BL)
        x_BLE = dropout(x_BLE if self.norm is None else self.norm(x_BLE), self.config.dropout_rate, rng)
        return x_BLE if self.projection is None else shard_activations(self.projection(x_BLE), 'BLD')


def default_positions(config: ModelConfig, tokens_BL: Array) -> Array:
    """Returns the positions 0, 1, ... of each row, int [B, L].

    Raises:
        InputError: the tokens are no array [B, L] of integers, or L is larger than the table of learned positions.
    """
    require(tokens_BL.ndim == 2, 'the shape of tokens', tokens_BL.shape, '[rows, positions]')
    require(jnp.issubdtype(tokens_BL.dtype, jnp.integer), 'the type of tokens', str(tokens_BL.dtype), 'an integer type')
    length = tokens_BL.shape[1]
    if config.positions == 'learned':
        most = config.max_length - config.position_offset
        require(length <= most, 'the length of a row', length, f'at most {most}, the number of positions (max_length)')
    return jnp.broadcast_to(jnp.arange(length), tokens_BL.shape)


def learned_positions(config: ModelConfig, rngs: nnx.Rngs) -> nnx.Embed | AxialPositions | None:
    """Returns the module of learned position embeddings, [B, L] -> [B, L, E]; None if the config has no learned
    positions.
    """
    width = config.embedding_width
    if config.positions == 'learned':
        return embedding(config, config.max_length, width, rngs)
    if config.positions != 'axial':
        return None
    widths = [width] * len(config.axial_shape) if config.axial_sum else config.axial_widths
    return AxialPositions(config, config.axial_shape, widths, is_sum=config.axial_sum, rngs=rngs)
