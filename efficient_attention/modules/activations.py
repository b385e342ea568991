"""The activations of the papers, by the name a config gives them."""

from collections.abc import Callable

import jax
from jax import Array
from jaxtyping import Float


def gelu_tanh(x: Float[Array, '...']) -> Float[Array, '...']:
    """GELU in its tanh approximation, as in the code of BERT, ALBERT and GPT-2.

    Source: Hendrycks & Gimpel 2016, arXiv 1606.08415.
    """
    return jax.nn.gelu(x, approximate=True)


def gelu_erf(x: Float[Array, '...']) -> Float[Array, '...']:
    """Exact GELU, x * Phi(x), as in ELECTRA's code."""
    return jax.nn.gelu(x, approximate=False)


def gelu_sigmoid(x: Float[Array, '...']) -> Float[Array, '...']:
    """x * sigmoid(1.702 x), as the Sparse Transformer prints it (Child et al. 2019, arXiv 1904.10509, section 5.2)."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATION_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    'gelu_tanh': gelu_tanh,
    'gelu_erf': gelu_erf,
    'gelu_sigmoid': gelu_sigmoid,
    'relu': jax.nn.relu,
    'silu': jax.nn.silu,
}
