"""Defines FAVOR+ attention: its options, and the dense matrix of the attention weights that its random features imply.

Source: Choromanski et al. 2020, arXiv 2009.14794. `random_features.py` samples the features and maps vectors to them.
"""

import dataclasses
from typing import cast

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor.random_features import KERNELS, draw_features
from efficient_attention.attention.features.definition import FeatureAttention, feature_weights
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.mechanism import Randomness, ensure_kind
from efficient_attention.attention.request import Request
from efficient_attention.errors import require, require_at_least, require_truth_values


@dataclasses.dataclass(frozen=True)
class FAVOR(FeatureAttention):
    """Linear attention phi(q) (phi(k)^T v), normalised, whose random features phi estimate softmax attention (the
    Performer's FAVOR+).

    The mechanism takes no bias. Source: Choromanski et al. 2020, arXiv 2009.14794 (FAVOR+), sections 2.3 and 2.4,
    appendix B.

    Args:
        features: R.
        causal: k <= q, through chunks and a running state.
        kernel: 'softmax' = positive features of the softmax kernel | 'relu' = generalised features relu(w x) + 1e-3.
        orthogonal: sample the features in orthogonal blocks of K.
        chunk: number of positions in a chunk of the causal form, and of rows with several segments. Products over
            pairs cover only the pairs inside each chunk.
    """

    name = 'favor'
    randomness = Randomness(always=True)  # every call samples the random projections

    features: int = 256
    causal: bool = False
    kernel: str = 'softmax'
    orthogonal: bool = True
    chunk: int = 128

    def __post_init__(self) -> None:
        for name in ('features', 'chunk'):
            require_at_least(1, f'favor {name}', getattr(self, name))
        require_truth_values('favor', causal=self.causal, orthogonal=self.orthogonal)
        require(self.kernel in KERNELS, 'favor kernel', self.kernel, f'one of {", ".join(KERNELS)}')

    def feature_map(self, rng: Array, width: int) -> FeatureMap:
        """Returns the random feature map for heads of this width, sampled with the key `rng`."""
        return FeatureMap(KERNELS[self.kernel], draw_features(rng, self.features, width, self.orthogonal))


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns the attention weights that FAVOR's random features imply,
    sampled with the attention request's PRNG key, and None (no log-sum-exp).
    """
    return feature_weights(request, feature_map_of_request(request))


def feature_map_of_request(request: Request) -> FeatureMap:
    """Returns FAVOR's feature map, sampled with the attention request's PRNG key."""
    return ensure_kind(FAVOR, request.mechanism).feature_map(cast(Array, request.rng), request.key.shape[3])


def multiply_adds(mechanism: FAVOR, length: int, heads: int, width: int) -> int:
    """Returns FAVOR's multiply-adds for one row: features of queries and keys, sums over keys,
    and products of queries with these sums.

    The causal form adds two products over the pairs of each chunk. Additions for features besides their products are
    left out.
    """
    chunk = min(mechanism.chunk, length) if mechanism.causal else 0
    return heads * length * (4 * mechanism.features * width + chunk * (mechanism.features + width))
