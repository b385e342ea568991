"""The position-wise feed-forward sub-layer, and the activation functions of the supported models."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.dropout import dropout
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer_constructors import linear
from efficient_attention.modules.low_rank import with_low_rank


class FeedForward(nnx.Module):
    """The feed-forward sub-layer: activation(x W_up + b) W_down + b at each position, [B, L, D] -> [B, L, D].

    With `feed_forward_gate`: (activation(x W_gate + b) * (x W_up + b)) W_down + b (Shazeer 2020, arXiv 2002.05202).

    With `feed_forward_chunk` = c, c positions are computed at a time and recomputed in the backward pass. So the full
    wide activations [B, L, F] never exist (Kitaev et al. 2020, arXiv 2001.04451, section 3).
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.chunk = config.feed_forward_chunk
        self.activation, self.dropout_rate = config.activation, config.feed_forward_dropout_rate
        width, wide, use_bias = config.width, config.feed_forward_width, config.feed_forward_bias
        has_gate = config.feed_forward_gate
        self.gate = linear(config, width, wide, rngs, axes='DF', use_bias=use_bias) if has_gate else None
        self.up = linear(config, width, wide, rngs, axes='DF', use_bias=use_bias)
        self.down = linear(config, wide, width, rngs, axes='FD', use_bias=use_bias)
        with_low_rank(self, config, ('gate', 'up', 'down'), rngs)

    def __call__(self, x_BLD: Array, *, rng: Array | None = None) -> Array:
        """Returns the feed-forward output [B, L, D]; it is computed in chunks of positions if the config says so.

        Chunked and unchunked results are equal up to rounding.

        `rng` (a PRNG key, or one per row) enables dropout of the wide activations, which chunked computation does not
        support.
        """
        if not self.chunk or self.chunk >= x_BLD.shape[1]:
            return self.compute(x_BLD, rng)
        batch, length, width = x_BLD.shape
        chunks = -(-length // self.chunk)
        padded = jnp.pad(x_BLD, ((0, 0), (0, chunks * self.chunk - length), (0, 0)))
        x_nBcD = padded.reshape(batch, chunks, self.chunk, width).swapaxes(0, 1)
        out_nBcD = jax.lax.map(jax.checkpoint(self.compute), x_nBcD)
        return out_nBcD.swapaxes(0, 1).reshape(batch, chunks * self.chunk, width)[:, :length]

    def compute(self, x_BLD: Array, rng: Array | None = None) -> Array:
        """Returns the feed-forward output for all given positions, without chunks."""
        activate, up_BLF = ACTIVATION_FUNCTIONS[self.activation], shard_activations(self.up(x_BLD), 'BLF')
        wide_BLF = (
            activate(up_BLF) if self.gate is None else activate(shard_activations(self.gate(x_BLD), 'BLF')) * up_BLF
        )
        return shard_activations(self.down(dropout(wide_BLF, self.dropout_rate, rng)), 'BLD')


def gelu_tanh(x: Float[Array, '...']) -> Float[Array, '...']:
    """Returns the tanh approximation of GELU, as in the code of BERT, ALBERT and GPT-2.

    Source: Hendrycks & Gimpel 2016, arXiv 1606.08415.
    """
    return jax.nn.gelu(x, approximate=True)


def gelu_erf(x: Float[Array, '...']) -> Float[Array, '...']:
    """Returns exact GELU, x * Phi(x), as in ELECTRA's code."""
    return jax.nn.gelu(x, approximate=False)


def gelu_sigmoid(x: Float[Array, '...']) -> Float[Array, '...']:
    """Returns x * sigmoid(1.702 x), the Sparse Transformer's activation (Child et al. 2019, arXiv 1904.10509, 5.2)."""
    return x * jax.nn.sigmoid(1.702 * x)


# The activation functions by the names that configs use.
ACTIVATION_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    'gelu_tanh': gelu_tanh,
    'gelu_erf': gelu_erf,
    'gelu_sigmoid': gelu_sigmoid,
    'relu': jax.nn.relu,
    'silu': jax.nn.silu,
}
