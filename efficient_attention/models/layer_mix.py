"""One vector for each token from those of all layers: a mean with learned weights, times a learned number."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class LayerMix(nnx.Module):
    """gamma sum_j s_j h_j with s = softmax(w) over the embeddings and the N layers, [N + 1, B, L, D] -> [B, L, D].

    At first it is their mean. Source: Peters et al. 2018 (ELMo), arXiv 1802.05365, equation 1.
    """

    def __init__(self, layers: int) -> None:
        self.weights = nnx.Param(jnp.zeros(layers + 1, jnp.float32))
        self.scale = nnx.Param(jnp.ones((), jnp.float32))

    def __call__(self, states_NBLD: Array) -> Array:
        """The vectors, in the dtype of the states; their sum is float32."""
        shares_N = jax.nn.softmax(self.weights[...]) * self.scale[...]
        mixed_BLD = jnp.einsum('N,NBLD->BLD', shares_N, states_NBLD.astype(jnp.float32))
        return mixed_BLD.astype(states_NBLD.dtype)
