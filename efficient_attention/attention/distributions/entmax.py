"""Entmax with alpha 1.5: between softmax and sparsemax, with weights of exactly zero and a smoother border."""

from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.distributions.threshold import above_threshold


def entmax(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """max(z / 2 - tau, 0)^2 (Peters et al. 2019, arXiv 1905.05702, section 3.2)."""
    return above_threshold(2, logits_BHLM, allowed_bhLM)
