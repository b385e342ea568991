"""FAVOR+ attention: the backend, token-by-token decoding, and the dense definition.

Source: Choromanski et al. 2020, arXiv 2009.14794. `features` has the features and how they are scaled,
`chunks` the sums; here packed segments are sorted into runs first, because the sums before a chunk can be kept
for one segment only.
"""

import functools
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor.all_keys import attend_all
from efficient_attention.attention.favor.chunks import FavorState, attend_causal, init_state
from efficient_attention.attention.favor.features import (
    draw_features,
    log_features,
    redraw_key,
)
from efficient_attention.attention.mechanism import FAVOR
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.dense import masked_softmax, same_segment

__all__ = ['FavorState', 'decode', 'draw_features', 'init_state', 'log_features', 'redraw_key', 'serve', 'weights']


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """The favor backend: `FAVOR`, causal or not, with segments, cross attention and grouped heads."""
    refuse(request)
    query_segments, key_segments = request.query_segments, request.key_segments
    if query_segments is None or key_segments is None:
        out = serve_plain(request)
    else:
        out = serve_segments(request, query_segments, key_segments)
    return out.astype(request.query.dtype), None


def favor_of(request: Request) -> FAVOR:
    """The request's mechanism; raises NotImplementedError unless it is FAVOR."""
    if not isinstance(request.mechanism, FAVOR):
        raise NotImplementedError(f'favor computes FAVOR, not {type(request.mechanism).__name__}')
    return request.mechanism


def refuse(request: Request) -> None:
    """Raises NotImplementedError that names what the backend lacks, if it lacks something for the request."""
    mechanism = favor_of(request)
    lacks = {
        'additive bias': request.bias is not None,
        'dropout on weights': request.dropout_rate > 0.0,
        'log-sum-exp': request.return_lse,
        'causal form for other positions than 0, 1, ...': mechanism.causal and not request.has_default_positions,
        'causal form for unequal lengths': mechanism.causal and request.query.shape[1] != request.key.shape[1],
    }
    missing = [name for name, is_asked in lacks.items() if is_asked]
    if missing:
        raise NotImplementedError(f'favor has no {", no ".join(missing)}')


def request_features(request: Request) -> Float[Array, 'R K']:
    """The features that the request's key draws."""
    mechanism = favor_of(request)
    return draw_features(cast(Array, request.rng), mechanism.features, request.key.shape[3], mechanism.orthogonal)


def serve_plain(request: Request, valid_BM: Array | None = None) -> Array:
    """Float32 outputs [B, L, H, K] where all keys are one segment, or one segment and padding."""
    projection, mechanism = request_features(request), favor_of(request)
    query, key, value = request.query, request.key, request.value
    if mechanism.causal:
        state = init_state(key.shape[0], key.shape[2], *projection.shape)
        return attend_causal(query, key, value, state, projection, mechanism)[0][0]
    return attend_all(query, key, value, valid_BM, projection, mechanism.kernel)


def serve_segments(request: Request, query_segments: Array, key_segments: Array) -> Array:
    """Float32 outputs [B, L, H, K] of queries that read their own segment; zeros for padding.

    Rows that hold one segment and padding need no sorting when not causal; the arrays tell while the program runs.
    """
    packed = functools.partial(attend_segments, request, query_segments, key_segments)
    if favor_of(request).causal:
        out = packed()
    else:
        plain = functools.partial(serve_plain, request, jnp.not_equal(key_segments, 0))
        out = jax.lax.cond(has_one_segment(query_segments, key_segments), plain, packed)
    return jnp.where(jnp.not_equal(query_segments, 0)[..., None, None], out, 0.0)


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """The implicit weights phi(q) phi(k) / sum over allowed keys, for any positions: the definition of `FAVOR`.

    Written as a masked softmax of log(phi(q) phi(k)), each a log-sum-exp over the features, query by query.
    """
    if request.bias is not None:
        raise NotImplementedError('FAVOR has no additive bias')
    projection, mechanism = request_features(request), favor_of(request)
    key_BMHK = jnp.repeat(request.key, request.query.shape[2] // request.key.shape[2], axis=2)
    query_logs, key_logs = (
        log_features(x.swapaxes(1, 2), projection, mechanism.kernel) for x in (request.query, key_BMHK)
    )

    @jax.checkpoint
    def of_query(query_BHR: Array) -> Array:
        return jax.nn.logsumexp(query_BHR[:, :, None] + key_logs, axis=-1)

    logits = jnp.moveaxis(jax.lax.map(of_query, jnp.moveaxis(query_logs, 2, 0)), 0, 2)
    allowed = same_segment(request)
    if mechanism.causal:
        query_positions, key_positions = jnp.asarray(request.query_positions), jnp.asarray(request.key_positions)
        allowed = allowed & (key_positions[:, None, None, :] <= query_positions[:, None, :, None])
    return masked_softmax(logits, allowed)[0], None


def decode(
    state: FavorState,
    query: Float[Array, 'B n H K'],
    key: Float[Array, 'B n G K'],
    value: Float[Array, 'B n G K'],
    projection: Float[Array, 'R K'],
    mechanism: FAVOR,
) -> tuple[Float[Array, 'B n H K'], FavorState]:
    """Outputs of n >= 1 new tokens, which read themselves and all before them, and the state that includes them."""
    if not mechanism.causal:
        raise NotImplementedError('decoding needs FAVOR(causal=True): a state holds no later keys')
    (out, _), state = attend_causal(query, key, value, state, projection, mechanism)
    return out.astype(query.dtype), state


# Segments: sorted into runs


@jax.custom_vjp
def move(x_BLHK: Array, source_BN: Array, target_BL: Array) -> Array:  # noqa: ARG001  the gradient reads target_BL
    """Slot n holds position source[n] of `x`, zeros where that is -1; `target` is the slot of each position.

    Its gradient is the same gather the other way round, where that of indexing would be a scatter.
    """
    moved = jax.vmap(lambda x, source: jnp.take(x, source, axis=0, mode='clip'))(x_BLHK, source_BN)
    return jnp.where((source_BN >= 0)[..., None, None], moved, jnp.zeros_like(moved))


def _move_forward(x_BLHK: Array, source_BN: Array, target_BL: Array) -> tuple[Array, tuple[Array, Array]]:
    return move(x_BLHK, source_BN, target_BL), (source_BN, target_BL)


def _move_backward(indices: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    source_BN, target_BL = indices
    return move(gradient, target_BL, source_BN), None, None


move.defvjp(_move_forward, _move_backward)


class Order(NamedTuple):
    """Sorted slots [B, N]: their segments, the query and the key in each (-1: none), and the slot of each of these."""

    segments: Array
    query_source: Array
    key_source: Array
    query_slots: Array
    key_slots: Array


def sort_segments(query_segments: Array, key_segments: Array, causal: bool) -> Order:
    """Positions in runs of equal segments, in their old order inside a run.

    One slot holds a query and its key where both have the same segments. Otherwise each has its own, a key just
    before the query of the same number where order counts.
    """
    queries, keys = query_segments.shape[1], key_segments.shape[1]
    if query_segments is key_segments:
        key_at, query_at = np.arange(keys), np.arange(queries)
    else:
        key_at, query_at = (
            (2 * np.arange(keys), 2 * np.arange(queries) + 1) if causal else np.split(np.arange(keys + queries), [keys])
        )
    sources = np.full((2, max(key_at[-1], query_at[-1]) + 1), -1, np.int32)
    sources[0, query_at], sources[1, key_at] = np.arange(queries), np.arange(keys)
    segments = jnp.where(sources[1] >= 0, key_segments[:, sources[1]], query_segments[:, sources[0]])
    order_BN = jnp.argsort(segments, axis=1, stable=True)
    slots_BN = jnp.argsort(order_BN, axis=1)
    query_source, key_source = (jnp.asarray(source)[order_BN] for source in sources)
    sorted_segments = jnp.take_along_axis(segments, order_BN, axis=1)
    return Order(sorted_segments, query_source, key_source, slots_BN[:, query_at], slots_BN[:, key_at])


def attend_segments(request: Request, query_segments: Array, key_segments: Array) -> Array:
    """Float32 outputs [B, L, H, K] of queries that read their own segment, causal or not."""
    projection, mechanism = request_features(request), favor_of(request)
    order = sort_segments(query_segments, key_segments, mechanism.causal)
    query = move(request.query, order.query_source, order.query_slots)
    key, value = (move(x, order.key_source, order.key_slots) for x in (request.key, request.value))
    valid = (order.key_source >= 0) & (order.segments != 0)
    state = init_state(key.shape[0], key.shape[2], *projection.shape)
    attend = functools.partial(attend_causal, query, key, value, state, projection, mechanism)
    attend = functools.partial(attend, valid_BL=valid, segments_BL=order.segments)
    if mechanism.causal:
        out = attend()[0][0]
    else:
        (out, lse), _ = attend(reads='chunk')
        (later, later_lse), _ = attend(reads='later')
        out = out + jax.nn.sigmoid(later_lse - lse)[..., None] * (later - out)
    return move(out, order.query_slots, order.query_source)


def has_one_segment(query_segments: Array, key_segments: Array) -> Array:
    """Whether no row holds more than one segment beside padding, so that padding is all there is to mask."""
    segments = jnp.concatenate([query_segments, key_segments], axis=1)
    limits = jnp.iinfo(segments.dtype)
    lowest = jnp.where(segments == 0, limits.max, segments).min(axis=1)
    return (lowest >= jnp.where(segments == 0, limits.min, segments).max(axis=1)).all()
