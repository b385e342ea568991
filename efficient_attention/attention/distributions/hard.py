"""Hard attention: the whole weight on one key."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.weights import MASKED


def hard(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """1 for the allowed key of the largest logit, of equal ones the first; logits get no gradient.

    Source: Xu et al. 2015, arXiv 1502.03044, section 4.1, with the most likely place in the place of a drawn one.
    """
    best_BHL1 = jnp.where(allowed_bhLM, logits_BHLM, MASKED).argmax(axis=-1, keepdims=True)
    is_best_BHLM = jnp.arange(logits_BHLM.shape[-1])[None, None, None] == best_BHL1
    return (is_best_BHLM & allowed_bhLM).astype(jnp.float32), None
