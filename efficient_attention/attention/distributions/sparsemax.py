"""Sparsemax: the point of the simplex that is nearest to the logits, with weights of exactly zero."""

from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.distributions.threshold import above_threshold


def sparsemax(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """max(z - tau, 0) (Martins & Astudillo 2016, arXiv 1602.02068, equation 2 and algorithm 1)."""
    return above_threshold(2.0, thresholds, logits_BHLM, allowed_bhLM)


def thresholds(mean: Float[Array, '...'], _: Float[Array, '...'], k: Float[Array, '...']) -> Float[Array, '...']:
    """tau by which k entries of this mean, less tau, sum to 1."""
    return mean - 1.0 / k
