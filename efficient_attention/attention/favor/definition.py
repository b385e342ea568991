"""FAVOR+ attention defined: its options, and the implicit weights as a dense matrix.

Source: Choromanski et al. 2020, arXiv 2009.14794. `features` has the features and how they are scaled.
"""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor.features import FeatureMap, draw_features
from efficient_attention.attention.mechanism import Mechanism, of_kind, refuse, require, require_at_least
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import masked_softmax, same_segment, up_to_query

KERNELS = ('softmax', 'relu')


@dataclasses.dataclass(frozen=True)
class FAVOR(Mechanism):
    """Linear attention with random features: phi(q) (phi(k)^T v), normalised; estimates softmax attention without bias.

    Source: Choromanski et al. 2020, arXiv 2009.14794 (FAVOR+), sections 2.3 and 2.4, appendix B.

    Args:
        features: R.
        causal: k <= q, through chunks and a running state.
        kernel: 'softmax' = positive features of the softmax kernel | 'relu' = generalised features relu(w x) + 1e-3.
        orthogonal: draw the features in orthogonal blocks of K.
        chunk: positions computed at once in the causal form and where rows hold several segments.
    """

    features: int = 256
    causal: bool = False
    kernel: str = 'softmax'
    orthogonal: bool = True
    chunk: int = 128

    def __post_init__(self) -> None:
        for name in ('features', 'chunk'):
            require_at_least(1, f'favor {name}', getattr(self, name))
        require(self.kernel in KERNELS, 'favor kernel', self.kernel, f'one of {", ".join(KERNELS)}')

    @property
    def needs_rng(self) -> bool:
        """The features are random projections."""
        return True

    @property
    def has_dropout(self) -> bool:
        """The weights never exist."""
        return False

    @property
    def compares_positions(self) -> bool:
        """Where it is causal."""
        return self.causal

    def feature_map(self, rng: Array, width: int) -> FeatureMap:
        """The features that a key draws, for heads of this width."""
        return FeatureMap(self.kernel, draw_features(rng, self.features, width, self.orthogonal))


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """The implicit weights of the features that the request's key draws."""
    return feature_weights(request, request_features(request))


def request_features(request: Request) -> FeatureMap:
    """The features that the request's key draws."""
    return of_kind(FAVOR, request.mechanism).feature_map(cast(Array, request.rng), request.key.shape[3])


def feature_weights(request: Request, features: FeatureMap) -> tuple[Float[Array, 'B H L M'], None]:
    """The implicit weights phi(q) phi(k) / sum over allowed keys, for any positions.

    Written as a masked softmax of log(phi(q) phi(k)), each a log-sum-exp over the features, query by query.
    """
    refuse(request.mechanism.name, {'additive bias': request.bias is not None})
    key_BMHK = jnp.repeat(request.key, request.query.shape[2] // request.key.shape[2], axis=2)
    query_logs, key_logs = (features.logs(x.swapaxes(1, 2)) for x in (request.query, key_BMHK))

    @jax.checkpoint
    def of_query(query_BHR: Array) -> Array:
        return jax.nn.logsumexp(query_BHR[:, :, None] + key_logs, axis=-1)

    logits = jnp.moveaxis(jax.lax.map(of_query, jnp.moveaxis(query_logs, 2, 0)), 0, 2)
    allowed = same_segment(request)
    allowed = allowed & up_to_query(request) if request.mechanism.is_causal else allowed
    return masked_softmax(logits, allowed)[0], None
