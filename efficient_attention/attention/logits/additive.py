"""Additive scores: a learned vector times tanh(q + k), in place of the product of query and key."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def additive_logits(
    query: Float[Array, 'B L H K'], key: Float[Array, 'B M G K'], vector_HK: Float[Array, 'H K']
) -> Float[Array, 'B H L M']:
    """v tanh(q + k) in float32, unscaled; a key head serves H / G query heads.

    With q = W s and k = U h these are the scores of Bahdanau et al. 2014, arXiv 1409.0473, appendix A.1.2, and of
    "concat" in Luong et al. 2015, arXiv 1508.04025, equation 8, whose matrix times [h; s] is such a sum.
    """
    batch, queries, heads, width = query.shape
    keys, groups = key.shape[1:3]
    q_BLGhK = query.astype(jnp.float32).reshape(batch, queries, groups, heads // groups, width)
    q_BGhL1K = q_BLGhK.transpose(0, 2, 3, 1, 4)[..., None, :]
    k_BG11MK = key.astype(jnp.float32).swapaxes(1, 2)[:, :, None, None]
    vector_1Gh11K = vector_HK.astype(jnp.float32).reshape(1, groups, heads // groups, 1, 1, width)
    logits_BGhLM = (jnp.tanh(q_BGhL1K + k_BG11MK) * vector_1Gh11K).sum(axis=-1)
    return logits_BGhLM.reshape(batch, heads, queries, keys)
