"""A sub-layer of which nothing is left but its bias: all heads of the attention, or all units, have been removed."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.config.layer import LayerConfig


class Constant(nnx.Module):
    """The same learned vector for each token, [B, L, D] -> [B, L, D]."""

    def __init__(self, config: LayerConfig) -> None:
        self.bias = nnx.Param(jnp.zeros(config.width, jnp.float32))

    def __call__(self, x_BLD: Array, *, rng: Array | None = None) -> Array:  # noqa: ARG002  nothing is dropped inside
        """The vector at every position of the input, whose numbers it does not read."""
        bias_D = jnp.asarray(self.bias[...]).astype(x_BLD.dtype)
        return jax.lax.broadcast_in_dim(bias_D, x_BLD.shape, (x_BLD.ndim - 1,))
