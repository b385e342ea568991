"""The contract: every mechanism's attention weights [B, H, L, M] in float32, and the output that they give.

Every other backend is tested against it, and it against the papers' formulas in float64 NumPy. A mechanism's definition
is a function from a request to (weights, log-sum-exp or None), written to be read.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor import serve as favor
from efficient_attention.attention.lsh import definition as lsh_definition
from efficient_attention.attention.mechanism import FAVOR, LSH, Softmax
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax import dense

Definition = Callable[[Request], tuple[Array, Array | None]]


def softmax_weights(request: Request) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L']]:
    """Weights and log-sum-exp of `Softmax`, products in full float32 on accelerators too."""
    logits_BHLM = dense.scaled_logits(request, jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST)
    return dense.masked_softmax(logits_BHLM, dense.allowed_pairs(request))


DEFINITIONS: dict[type, Definition] = {Softmax: softmax_weights, LSH: lsh_definition.weights, FAVOR: favor.weights}


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L'] | None]:
    """The mechanism's weights before dropout, and its log-sum-exp where it has one."""
    definition = DEFINITIONS.get(type(request.mechanism))
    if definition is None:
        raise NotImplementedError(f'no dense definition of {type(request.mechanism).__name__}')
    return definition(request)


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """The reference backend: weights times values, in full float32."""
    weights_BHLM, lse_BHL = weights(request)
    dropped = dense.drop_weights(weights_BHLM, request)
    out = dense.combine_values(dropped, request.value, jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST)
    return out.astype(request.query.dtype), lse_BHL
