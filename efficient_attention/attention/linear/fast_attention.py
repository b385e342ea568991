"""Computes linear attention in time and memory linear in the length, through sums over the features of keys."""

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.features.cosine import append_request_positions, cosine_map, set_nan_beyond_length
from efficient_attention.attention.features.fast_attention import attend_features
from efficient_attention.attention.features.sequence_parallel import attend_features_shard
from efficient_attention.attention.linear.definition import ELU, Linear, check_length
from efficient_attention.attention.mechanism import ensure_kind, raise_unsupported
from efficient_attention.attention.request import Request
from efficient_attention.attention.sequence_parallel.sequence_split import SequenceSplit


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of linear attention, causal or not; supports segments, cross-attention and grouped heads."""
    mechanism = ensure_kind(Linear, request.mechanism)
    if mechanism.kind == 'elu':
        return attend_features(request, ELU, mechanism.chunk)
    check_length(request)
    out_BLHX, _ = attend_features(append_request_positions(request), cosine_map(mechanism.length), mechanism.chunk)
    out_BLHK = set_nan_beyond_length(out_BLHX[..., :-1], request, mechanism.length)
    return out_BLHK.astype(request.query.dtype), None


def compute_attention_shard(request: Request, split: SequenceSplit) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of linear attention for one device's shard of the rows; supports only the kind 'elu'."""
    mechanism = ensure_kind(Linear, request.mechanism)
    raise_unsupported(
        'linear', {"implementation of 'cos' for rows sharded over a sequence axis": mechanism.kind == 'cos'}
    )
    return attend_features_shard(request, split, ELU, mechanism.chunk)
