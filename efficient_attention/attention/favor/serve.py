"""Attention through features, linear in the length: FAVOR's fast form, and that of every feature map.

`features` has the features and how they are scaled, `all_keys` and `chunks` the sums, `segments` the order in which
packed rows are summed.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor.definition import FAVOR, request_features
from efficient_attention.attention.favor.features import FeatureMap
from efficient_attention.attention.features.all_keys import attend_all
from efficient_attention.attention.features.causal import Tokens, attend_causal, init_state
from efficient_attention.attention.features.segments import has_one_segment, move, sort_segments
from efficient_attention.attention.mechanism import of_kind, refuse
from efficient_attention.attention.request import Request, Sides


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """`FAVOR`, causal or not, with segments, cross attention and grouped heads."""
    return serve_features(request, request_features(request), of_kind(FAVOR, request.mechanism).chunk)


def check_served(request: Request) -> None:
    """Raises NotImplementedError that names what attention through features lacks, if it lacks something asked for."""
    is_causal = request.mechanism.is_causal
    lacks = {
        'additive bias': request.bias is not None,
        'dropout on weights': request.dropout is not None,
        'log-sum-exp': request.return_lse,
        'causal form for other positions than 0, 1, ...': is_causal and not request.has_default_positions,
        'causal form for unequal lengths': is_causal and request.query.shape[1] != request.key.shape[1],
    }
    refuse(request.mechanism.name, lacks)


def serve_features(request: Request, features: FeatureMap, chunk: int) -> tuple[Float[Array, 'B L H K'], None]:
    """phi(q) (phi(k)^T v) / phi(q) sum phi(k) of any feature map, `chunk` positions at once where causal."""
    check_served(request)
    if request.segments is None:
        out = serve_plain(request, features, chunk)
    else:
        out = serve_segments(request, request.segments, features, chunk)
    return out.astype(request.query.dtype), None


def serve_plain(request: Request, features: FeatureMap, chunk: int, valid_BM: Array | None = None) -> Array:
    """Float32 outputs [B, L, H, K] where all keys are one segment, or one segment and padding."""
    query, key, value = request.query, request.key, request.value
    if request.mechanism.is_causal:
        state = init_state(key.shape[0], key.shape[2], features.count(key.shape[3]), key.shape[3])
        return attend_causal(Tokens(query, key, value), state, features, chunk)[0][0]
    return attend_all(query, key, value, valid_BM, features)


def serve_segments(request: Request, segments: Sides, features: FeatureMap, chunk: int) -> Array:
    """Float32 outputs [B, L, H, K] of queries that read their own segment; zeros for padding.

    Rows that hold one segment and padding need no sorting when not causal; the arrays tell while the program runs.
    """
    packed = functools.partial(attend_segments, request, segments, features, chunk)
    if request.mechanism.is_causal:
        out = packed()
    else:
        plain = functools.partial(serve_plain, request, features, chunk, jnp.not_equal(segments.key, 0))
        out = jax.lax.cond(has_one_segment(*segments), plain, packed)
    return jnp.where(jnp.not_equal(segments.query, 0)[..., None, None], out, 0.0)


def attend_segments(request: Request, segments: Sides, features: FeatureMap, chunk: int) -> Array:
    """Float32 outputs [B, L, H, K] of queries that read their own segment, causal or not."""
    is_causal = request.mechanism.is_causal
    order = sort_segments(segments.query, segments.key, is_causal)
    query = move(request.query, order.query_source, order.query_slots)
    key, value = (move(x, order.key_source, order.key_slots) for x in (request.key, request.value))
    tokens = Tokens(query, key, value, (order.key_source >= 0) & (order.segments != 0), order.segments)
    state = init_state(key.shape[0], key.shape[2], features.count(key.shape[3]), key.shape[3])
    attend = functools.partial(attend_causal, tokens, state, features, chunk)
    if is_causal:
        out = attend()[0][0]
    else:
        (out, lse), _ = attend(reads='chunk')
        (later, later_lse), _ = attend(reads='later')
        out = out + jax.nn.sigmoid(later_lse - lse)[..., None] * (later - out)
    return move(out, order.query_slots, order.query_source)
