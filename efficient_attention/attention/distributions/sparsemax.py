"""Sparsemax: the point of the simplex that is nearest to the logits, with weights of exactly zero."""

from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.distributions.threshold import above_threshold


def sparsemax(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """max(z - tau, 0) (Martins & Astudillo 2016, arXiv 1602.02068, equation 2)."""
    return above_threshold(1, logits_BHLM, allowed_bhLM)
