"""Defines linear attention: softmax is replaced by products of features of queries and keys. The features are
cosFormer's features or elu(x) + 1.
"""

import dataclasses
import functools

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.features.cosine import append_request_positions, cosine_map, set_nan_beyond_length
from efficient_attention.attention.features.definition import FeatureAttention, feature_weights
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.mechanism import (
    Capabilities,
    KeyAccess,
    Requirements,
    ensure_kind,
    raise_unsupported,
)
from efficient_attention.attention.request import Request
from efficient_attention.errors import require, require_at_least, require_truth_values


@dataclasses.dataclass(frozen=True)
class Linear(FeatureAttention):
    """Linear attention phi(q) (phi(k)^T v) / phi(q) sum phi(k) with deterministic features phi.

    Sources: Katharopoulos et al. 2020, arXiv 2006.16236, equations 5 and 7; causal: section 3.3, in chunks. Qin et al.
    2022, arXiv 2202.08791 (cosFormer), equation 10.

    Args:
        kind: the kind of features. 'elu' = elu(x) + 1; 'cos' = relu(x), with products that fall with distance by
            cos(pi (i - j) / 2 length).
        length: only for 'cos', the longest row.
        causal: k <= q, through chunks and a running state.
        chunk: number of positions in a chunk of the causal form, and of rows with several segments. Products over
            pairs cover only the pairs inside each chunk.
    """

    name = 'linear'

    kind: str = 'elu'
    length: int = 0
    causal: bool = False
    chunk: int = 128

    def __post_init__(self) -> None:
        require(self.kind in ('elu', 'cos'), 'linear kind', self.kind, 'elu or cos')
        require((self.kind == 'cos') == (self.length > 0), 'linear length', self.length, "above 0 for 'cos', else 0")
        require_at_least(1, 'linear chunk', self.chunk)
        require_truth_values('linear', causal=self.causal)

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires positions in the causal form, and for the kind 'cos',
        whose features depend on positions below `length`.
        """
        return Requirements(positions=self.causal or self.kind == 'cos', longest=self.length)

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """Supports no dropout; supports sequence parallel attention only for the kind 'elu'."""
        return Capabilities(has_dropout=False, splits_tokens=self.kind == 'elu')

    @functools.cached_property
    def key_access(self) -> KeyAccess:
        """Allows cross-attention only in the noncausal form.

        The kind 'cos' counts positions separately in each sequence.
        """
        return KeyAccess(other_sequence=not self.causal)


def log_features(x: Float[Array, '*batch K'], _: None) -> Float[Array, '*batch K']:
    """Returns the log features log(elu(x) + 1) in float32, one feature per entry of x."""
    x = x.astype(jnp.float32)
    return jnp.where(x > 0.0, jnp.log1p(jnp.maximum(x, 0.0)), x)


ELU = FeatureMap(log_features)


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns the dense attention weights that linear attention implies:
    phi(q) phi(k) divided by its sum over the allowed keys.
    """
    mechanism = ensure_kind(Linear, request.mechanism)
    if mechanism.kind == 'elu':
        return feature_weights(request, ELU)
    check_length(request)
    weights_BHLM, _ = feature_weights(append_request_positions(request), cosine_map(mechanism.length))
    return set_nan_beyond_length(weights_BHLM.swapaxes(1, 2), request, mechanism.length).swapaxes(1, 2), None


def check_length(request: Request) -> None:
    """Raises a NotImplementedError if the attention request has more positions than cosFormer's `length`."""
    check_positions(max(request.query.shape[1], request.full_row_key_count), ensure_kind(Linear, request.mechanism))


def check_positions(most: int, mechanism: Linear) -> None:
    """Raises a NotImplementedError if the number of positions `most` exceeds cosFormer's `length`."""
    raise_unsupported(
        'linear', {f'support for {most} positions, only for up to {mechanism.length}': most > mechanism.length}
    )


def multiply_adds(mechanism: Linear, length: int, heads: int, width: int) -> int:
    """Returns linear attention's multiply-adds for one row: sums over the keys,
    and products of the queries with these sums.

    Both include the sums for the denominator. The causal form adds two products over the pairs of each chunk.
    """
    chunk = min(mechanism.chunk, length) if mechanism.causal else 0
    if mechanism.kind == 'cos':  # each vector has its position as one more entry, and each entry gives two features
        return heads * length * (4 * width * (width + 2) + chunk * (3 * width + 1))
    return heads * length * 2 * width * (width + 1 + chunk)
