"""Computes attention by the backend `reference`: the attention weights [B, H, L, M] of any mechanism in float32, and
then the output from them.

All other backends are tested against the reference backend. The reference backend is tested against the papers'
formulas in float64 NumPy. Each
mechanism's definition.py has a readable function from a request to (weights, log-sum-exp or None). This file turns
those weights into the output.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import apply_weight_dropout, combine_values
from efficient_attention.attention.registry import get_implementation
from efficient_attention.attention.request import Request


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L'] | None]:
    """Returns the dense attention weights of the request's mechanism, and the log-sum-exp or None."""
    return get_implementation(request.mechanism).weights(request)


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """Computes the backend `reference` of every mechanism: returns weights times values
    in full float32, and the log-sum-exp or None.
    """
    weights_BHLM, lse_BHL = weights(request)
    is_dropped = request.mechanism.capabilities.drops_slots
    dropped_BHLM = weights_BHLM if is_dropped else apply_weight_dropout(weights_BHLM, request)
    out_BLHK = combine_values(dropped_BHLM, request.value, jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST)
    return out_BLHK.astype(request.query.dtype), lse_BHL
