"""Softmax attention over a pattern: what it promises, and its distribution."""

import dataclasses

from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.logits.over_pattern import OverPattern, Weights
from efficient_attention.attention.mechanism import Form
from efficient_attention.attention.weights import masked_softmax
from efficient_attention.errors import require_at_least


@dataclasses.dataclass(frozen=True)
class Softmax(OverPattern):
    """softmax(q k^T / sqrt(K)) v over the pairs that `pattern` allows.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.

    Args:
        pattern: who may read whom.
        tile: S, positions of a tile of scores on the backend `blocked`; results do not depend on it.
    """

    name = 'softmax'
    form = Form(has_logits=True, has_backends=True, merges=True, splits_tokens=True)

    tile: int = dataclasses.field(default=64, repr=False)

    def __post_init__(self) -> None:
        OverPattern.__post_init__(self)
        require_at_least(1, 'softmax tile', self.tile)

    def causal_form(self, text: str) -> str:
        """Its pattern's text & causal, for error lines."""
        return f"'causal & ({text})', which keeps the pairs that look back"

    def distribute(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """Softmax over the allowed keys, and the log-sum-exp."""
        return masked_softmax(logits_BHLM, allowed_bhLM)
