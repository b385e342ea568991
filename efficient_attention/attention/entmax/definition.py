"""Defines `Entmax`: attention that uses 1.5-entmax instead of softmax over the keys that a pattern allows."""

import dataclasses

from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.distributions.threshold import entmax
from efficient_attention.attention.logits.definition import PatternAttention, Weights


@dataclasses.dataclass(frozen=True)
class Entmax(PatternAttention):
    """The mechanism entmax(q k^T / sqrt(K)) v over the query-key pairs that `pattern` allows;
    many weights are exactly zero.

    Source: Peters et al. 2019, arXiv 1905.05702; in Transformers Correia et al. 2019, arXiv 1909.00015.
    """

    name = 'entmax'

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """Returns 1.5-entmax of the logits over the allowed keys, and None, because there is no log-sum-exp."""
        return entmax(logits_BHLM, allowed_bhLM)
