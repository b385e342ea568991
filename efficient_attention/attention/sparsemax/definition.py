"""`Sparsemax`, attention with sparsemax instead of softmax over a pattern's keys."""

import dataclasses

from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.distributions.threshold import sparsemax
from efficient_attention.attention.logits.definition import PatternAttention, Weights


@dataclasses.dataclass(frozen=True)
class Sparsemax(PatternAttention):
    """sparsemax(q k^T / sqrt(K)) v over the pairs that `pattern` allows: most weights are exactly zero.

    Source: Martins & Astudillo 2016, arXiv 1602.02068, section 4.3.
    """

    name = 'sparsemax'

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """Returns sparsemax over the allowed keys."""
        return sparsemax(logits_BHLM, allowed_bhLM)
