"""Merges results of softmax attention over disjoint sets of keys into the exact result
over all keys, through their log-sum-exps.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import MASKED

Partial = tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]


def merge_partial_softmax(parts: list[Partial]) -> Partial:
    """Returns softmax attention's output and log-sum-exp over all keys,
    merged from results over disjoint parts of the keys.

    Outputs are summed in float32. A query without a key in any part has log-sum-exp MASKED in each part and gets zeros.
    The result is differentiable in outputs and log-sum-exps. The axis p counts the parts.
    """
    if len(parts) == 1:
        return parts[0]
    lses_pBHL = jnp.stack([lse_BHL for _, lse_BHL in parts])
    maximum_1BHL = jax.lax.stop_gradient(lses_pBHL.max(axis=0, keepdims=True))
    shares_pBHL = jnp.exp(lses_pBHL - maximum_1BHL)
    total_BHL = shares_pBHL.sum(axis=0)
    has_key_BHL = maximum_1BHL[0] > MASKED / 2
    lse_BHL = jnp.where(has_key_BHL, maximum_1BHL[0] + jnp.log(total_BHL), MASKED)
    shares_pBLH1 = (shares_pBHL / total_BHL[None]).swapaxes(-1, -2)[..., None]
    out_BLHK = sum(share * out.astype(jnp.float32) for share, (out, _) in zip(shares_pBLH1, parts, strict=True))
    return out_BLHK.astype(parts[0][0].dtype), lse_BHL
