"""Computes FAVOR attention in time and memory linear in the length, through sums over the random features of keys."""

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor.definition import FAVOR, feature_map_of_request
from efficient_attention.attention.features.fast_attention import attend_features
from efficient_attention.attention.features.sequence_parallel import attend_features_shard
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.sequence_parallel.sequence_split import SequenceSplit


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of FAVOR attention, causal or not; supports segments, cross-attention and grouped heads."""
    return attend_features(request, feature_map_of_request(request), ensure_kind(FAVOR, request.mechanism).chunk)


def compute_attention_shard(request: Request, split: SequenceSplit) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of FAVOR attention for one device's shard of the rows."""
    return attend_features_shard(
        request, split, feature_map_of_request(request), ensure_kind(FAVOR, request.mechanism).chunk
    )
