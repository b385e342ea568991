"""The feature map of cosFormer: relu of queries and keys, times cosines and sines of positions,
so that weights fall with distance.

The position is appended to each vector as one more number, so the code for sums over features need not handle
positions. Values get a zero as this extra number, which is cut off the results.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention.features.feature_map import LOWEST_LOG, FeatureMap
from efficient_attention.attention.request import Numbers, Request


def cosine_map(length: int) -> FeatureMap:
    """Returns cosFormer's feature map. It reads vectors that hold their position as one more number; this position must
    be below `length`.
    """
    return FeatureMap(make_log_cosine_features(length), has_zeros=True)


# The cache keeps one function per length, so that calls of equal length share compiled programs.
@functools.lru_cache(maxsize=64)
def make_log_cosine_features(length: int) -> Callable[[Array, Any], Array]:
    """Returns the function from a vector with its position appended, [..., K + 1],
    to the logarithms of cosFormer's 2 K features.

    The features are relu(x) times a cosine and relu(x) times a sine. At position i the two factors are cos(pi i / 2 N)
    and sin(pi i / 2 N), with N = `length`. Products of features are
    relu(q) relu(k) cos(pi (i - j) / 2 N). Positions outside [0, N), where a cosine or a sine would be negative, have no
    feature (see `set_nan_beyond_length`).
    """

    def log_features(x: Float[Array, '*batch K'], _: None) -> Float[Array, '*batch R']:
        x = x.astype(jnp.float32)
        values, places = x[..., :-1], x[..., -1:]
        angles = jnp.minimum(places, length - 1.0) * (math.pi / (2 * length))
        is_there = values > 0.0
        logs = jnp.where(is_there, jnp.log(jnp.where(is_there, values, 1.0)), LOWEST_LOG)
        has_sine = places > 0.0
        sines = jnp.where(has_sine, jnp.log(jnp.sin(jnp.where(has_sine, angles, 1.0))), LOWEST_LOG)
        both = jnp.concatenate([logs + jnp.log(jnp.cos(angles)), logs + sines], axis=-1)
        return jnp.where((places >= 0) & (places < length), jnp.maximum(both, LOWEST_LOG), LOWEST_LOG)

    return log_features


def append_request_positions(request: Request) -> Request:
    """Returns the attention request in float32, with one more number per vector:
    the position for queries and keys, zero for values.
    """
    query_bL, key_bM = request.full_row_positions
    query, key = append_positions(request.query, query_bL), append_positions(request.key, key_bM)
    return dataclasses.replace(
        request, query=query, key=key, value=append_positions(request.value, jnp.zeros_like(key_bM))
    )


def set_nan_beyond_length(out_BLHX: Float[Array, 'B L H X'], request: Request, length: int) -> Float[Array, 'B L H X']:
    """Returns the attention results with NaN for queries whose position is outside 0 to `length` - 1.

    Unless causal, all queries of a row with a key outside that range also give NaN.
    """
    query_bL, key_bM = (jnp.asarray(places) for places in request.full_row_positions)
    is_beyond_bL = (query_bL < 0) | (query_bL >= length)
    if not request.mechanism.is_causal:
        is_key_bM = (key_bM < 0) | (key_bM >= length)
        if request.segments is not None:
            is_key_bM = is_key_bM & (request.segments.key != 0)
        is_beyond_bL = is_beyond_bL | is_key_bM.any(axis=1, keepdims=True)
    if request.segments is not None:
        is_beyond_bL = is_beyond_bL & (request.segments.query != 0)
    return jnp.where(is_beyond_bL[..., None, None], jnp.nan, out_BLHX)


def append_positions(x_BLHK: Float[Array, 'B L H K'], places_bL: Int[Numbers, '#B L']) -> Float[Array, 'B L H X']:
    """Returns float32 vectors with their position appended as one more number."""
    places_BLH1 = jnp.broadcast_to(jnp.asarray(places_bL)[..., None, None], (*x_BLHK.shape[:3], 1))
    return jnp.concatenate([x_BLHK.astype(jnp.float32), places_BLH1.astype(jnp.float32)], axis=-1)
