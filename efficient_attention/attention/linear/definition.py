"""Linear attention defined: softmax's kernel replaced by the features elu(x) + 1 of queries and keys."""

import dataclasses

from jax import Array

from efficient_attention.attention.favor.definition import feature_weights
from efficient_attention.attention.favor.features import FeatureMap
from efficient_attention.attention.mechanism import Mechanism, require_at_least
from efficient_attention.attention.request import Request

ELU = FeatureMap('elu')


@dataclasses.dataclass(frozen=True)
class Linear(Mechanism):
    """phi(q) (phi(k)^T v) / phi(q) sum phi(k) with phi(x) = elu(x) + 1, which draws nothing.

    Source: Katharopoulos et al. 2020, arXiv 2006.16236, equations 5 and 7; causal: section 3.3, in chunks.

    Args:
        causal: k <= q, through chunks and a running state.
        chunk: positions computed at once in the causal form and where rows hold several segments.
    """

    causal: bool = False
    chunk: int = 128

    def __post_init__(self) -> None:
        require_at_least(1, 'linear chunk', self.chunk)

    @property
    def has_dropout(self) -> bool:
        """The weights never exist."""
        return False

    @property
    def compares_positions(self) -> bool:
        """Where it is causal."""
        return self.causal


def weights(request: Request) -> tuple[Array, None]:
    """The implicit weights."""
    return feature_weights(request, ELU)
