"""FAVOR attention in time and memory linear in the length, by sums over its random features."""

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor.definition import FAVOR, request_features
from efficient_attention.attention.features.serve import serve_features
from efficient_attention.attention.features.split_tokens import serve_feature_share
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.split_tokens.split import Split


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of `FAVOR`, causal or not, with segments, cross-attention and grouped heads."""
    return serve_features(request, request_features(request), of_kind(FAVOR, request.mechanism).chunk)


def serve_share(request: Request, split: Split) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of `serve` for one device's shard of the rows."""
    return serve_feature_share(request, split, request_features(request), of_kind(FAVOR, request.mechanism).chunk)
