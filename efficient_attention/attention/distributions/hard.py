"""Hard attention weights: weight 1 for one key, which is the key with the largest logit or a sampled key."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, UInt32

from efficient_attention.attention.dense_attention import MASKED, masked_softmax

DRAWN_BITS = 23  # bits of a random integer n; u = (n + 0.5) / 2^23 is exact in float32


def hardmax(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns one-hot attention weights: 1 for the allowed key with the largest logit, 0 for all others. Of equally
    large logits the first one counts. The logits get no gradient.

    Source: Xu et al. 2015, arXiv 1502.03044, section 4.1, with the most likely location instead of a sampled one.
    """
    masked_BHLM = jnp.where(allowed_bhLM, logits_BHLM, MASKED)
    return (is_largest(masked_BHLM) & allowed_bhLM).astype(jnp.float32), None


def gumbel_max_sample(
    logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M'], bits_BHLM: UInt32[Array, 'B H L M']
) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L']]:
    """Samples one key per query from the softmax over the allowed keys; returns one-hot weights for this key, and the
    log-probability of the key.

    The weights give logits no gradient. The log-probability does, and is 0 for a query without keys. The sample is the
    key with the largest sum of logit and Gumbel noise from the random bits (Maddison et al. 2014, arXiv 1411.0030).
    """
    noisy_BHLM = jnp.where(allowed_bhLM, logits_BHLM + gumbel_from_bits(bits_BHLM), MASKED)
    weights_BHLM = (is_largest(jax.lax.stop_gradient(noisy_BHLM)) & allowed_bhLM).astype(jnp.float32)
    _, lse_BHL = masked_softmax(logits_BHLM, allowed_bhLM)
    chosen_BHL = jnp.where(weights_BHLM > 0.0, logits_BHLM, 0.0).sum(axis=-1)
    return weights_BHLM, jnp.where(weights_BHLM.any(axis=-1), chosen_BHL - lse_BHL, 0.0)


def is_largest(x_BHLM: Array) -> Bool[Array, 'B H L M']:
    """Returns whether an entry is the largest along the last axis;
    of equal entries only the first counts as the largest.
    """
    best_BHL1 = x_BHLM.argmax(axis=-1, keepdims=True)
    return jnp.arange(x_BHLM.shape[-1])[None, None, None] == best_BHL1


def gumbel_from_bits(bits: UInt32[Array, '...']) -> Float[Array, '...']:
    """Returns float32 Gumbel noise -log(-log(u)), where u is uniform in (0, 1) and is made of the upper random bits."""
    uniform = ((bits >> (32 - DRAWN_BITS)).astype(jnp.float32) + 0.5) * 2.0**-DRAWN_BITS
    return -jnp.log(-jnp.log(uniform))
