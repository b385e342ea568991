"""Linear attention defined: softmax's kernel replaced by the features elu(x) + 1 of queries and keys."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.features.definition import FeatureAttention, feature_weights
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.request import Request
from efficient_attention.errors import require_at_least, require_truth_values


@dataclasses.dataclass(frozen=True)
class Linear(FeatureAttention):
    """phi(q) (phi(k)^T v) / phi(q) sum phi(k) with phi(x) = elu(x) + 1, which draws nothing.

    Source: Katharopoulos et al. 2020, arXiv 2006.16236, equations 5 and 7; causal: section 3.3, in chunks.

    Args:
        causal: k <= q, through chunks and a running state.
        chunk: positions computed at once in the causal form and where rows hold several segments.
    """

    name = 'linear'

    causal: bool = False
    chunk: int = 128

    def __post_init__(self) -> None:
        require_at_least(1, 'linear chunk', self.chunk)
        require_truth_values('linear', causal=self.causal)


def log_features(x: Float[Array, '*batch K'], _: None) -> Float[Array, '*batch K']:
    """log(elu(x) + 1) in float32: as many features as x has entries."""
    x = x.astype(jnp.float32)
    return jnp.where(x > 0.0, jnp.log1p(jnp.maximum(x, 0.0)), x)


ELU = FeatureMap(log_features)


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """The implicit weights phi(q) phi(k), divided by their sum over the allowed keys."""
    return feature_weights(request, ELU)
