"""What hard attention over a pattern promises."""

import dataclasses

from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.distributions.hard import hard
from efficient_attention.attention.logits.over_pattern import OverPattern, Weights


@dataclasses.dataclass(frozen=True)
class Hard(OverPattern):
    """hard(q k^T / sqrt(K)) v over the pairs that `pattern` allows: the value of the key with the largest logit.

    Logits get no gradient, so that queries and keys learn nothing from what is read.

    Source: Xu et al. 2015, arXiv 1502.03044, section 4.1.
    """

    name = 'hard'

    def distribute(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """One for the allowed key with the largest logit."""
        return hard(logits_BHLM, allowed_bhLM)
