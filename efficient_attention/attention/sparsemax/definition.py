"""Defines `Sparsemax`: attention that uses sparsemax instead of softmax over the keys that a pattern allows."""

import dataclasses

from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.distributions.threshold import sparsemax
from efficient_attention.attention.logits.definition import PatternAttention, Weights


@dataclasses.dataclass(frozen=True)
class Sparsemax(PatternAttention):
    """The mechanism sparsemax(q k^T / sqrt(K)) v over the query-key pairs that `pattern` allows;
    most weights are exactly zero.

    Source: Martins & Astudillo 2016, arXiv 1602.02068, section 4.3.
    """

    name = 'sparsemax'

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """Returns sparsemax of the logits over the allowed keys, and None, because there is no log-sum-exp."""
        return sparsemax(logits_BHLM, allowed_bhLM)
