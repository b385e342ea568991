"""Entmax with alpha 1.5: between softmax and sparsemax, with weights of exactly zero and a smoother border."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.distributions.threshold import above_threshold


def entmax(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """max(z / 2 - tau, 0)^2 (Peters et al. 2019, arXiv 1905.05702, section 3.2 and algorithm 2)."""
    return above_threshold(1.5, thresholds, logits_BHLM, allowed_bhLM)


def thresholds(mean: Float[Array, '...'], squares: Float[Array, '...'], k: Float[Array, '...']) -> Float[Array, '...']:
    """tau by which the squares of k entries less tau sum to 1, from their mean and squared deviations from it."""
    return mean - jnp.sqrt(jnp.maximum(1.0 - squares, 0.0) / k)
