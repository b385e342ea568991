"""Linear attention in time and memory linear in the length, by sums over the features of keys."""

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.features.cosine import cosine_map, nan_beyond, with_places
from efficient_attention.attention.features.serve import serve_features
from efficient_attention.attention.features.split_tokens import serve_feature_share
from efficient_attention.attention.linear.definition import ELU, Linear, check_length
from efficient_attention.attention.mechanism import of_kind, refuse
from efficient_attention.attention.request import Request
from efficient_attention.attention.split_tokens.split import Split


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of `Linear`, causal or not, with segments, cross-attention and grouped heads."""
    mechanism = of_kind(Linear, request.mechanism)
    if mechanism.kind == 'elu':
        return serve_features(request, ELU, mechanism.chunk)
    check_length(request)
    out_BLHX, _ = serve_features(with_places(request), cosine_map(mechanism.length), mechanism.chunk)
    out_BLHK = nan_beyond(out_BLHX[..., :-1], request, mechanism.length)
    return out_BLHK.astype(request.query.dtype), None


def serve_share(request: Request, split: Split) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of `serve` for one device's shard of the rows; only for 'elu'."""
    mechanism = of_kind(Linear, request.mechanism)
    refuse('linear', {"implementation of 'cos' for rows sharded over a sequence axis": mechanism.kind == 'cos'})
    return serve_feature_share(request, split, ELU, mechanism.chunk)
