"""The contract: every mechanism's attention weights [B, H, L, M] in float32, and the output that they give.

Every other way to compute a mechanism is tested against it, and it against the papers' formulas in float64 NumPy. A
mechanism's definition, in the definition.py of its room, is a function from a request to (weights, log-sum-exp or
None), written to be read. This page makes the output of them, and stands apart as what all others are measured by.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.registry import room_of
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import combine_values, drop_weights


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L'] | None]:
    """The mechanism's weights as its room gives them, and its log-sum-exp where it has one."""
    return room_of(request.mechanism).weights(request)


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """The backend `reference` of every mechanism: weights times values, in full float32."""
    weights_BHLM, lse_BHL = weights(request)
    is_dropped = request.mechanism.form.drops_slots
    dropped_BHLM = weights_BHLM if is_dropped else drop_weights(weights_BHLM, request)
    out_BLHK = combine_values(dropped_BHLM, request.value, jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST)
    return out_BLHK.astype(request.query.dtype), lse_BHL
