"""Partial softmax results over disjoint sets of keys merge exactly, through their log-sum-exps."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.weights import MASKED

Partial = tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]


def merge(parts: list[Partial]) -> Partial:
    """(output, log-sum-exp) over the union of the parts' keys; the outputs are summed in float32.

    A query without a key in any part has log-sum-exp MASKED in each and gets zeros. Differentiable in both.
    """
    if len(parts) == 1:
        return parts[0]
    lses = jnp.stack([lse for _, lse in parts])
    maximum = jax.lax.stop_gradient(lses.max(axis=0, keepdims=True))
    shares = jnp.exp(lses - maximum)
    total = shares.sum(axis=0)
    has_key = maximum[0] > MASKED / 2
    lse = jnp.where(has_key, maximum[0] + jnp.log(total), MASKED)
    weights = (shares / total[None]).swapaxes(-1, -2)[..., None]
    out = sum(weight * out.astype(jnp.float32) for weight, (out, _) in zip(weights, parts, strict=True))
    return out.astype(parts[0][0].dtype), lse
