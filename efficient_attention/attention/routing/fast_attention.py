"""Computes routing attention without an array of all query-key pairs:
the tokens of each cluster and of each window are gathered.

Letters: g groups of s queries and m keys that they are compared with: the clusters, or the blocks of windows.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

from efficient_attention.attention.dense_attention import dropout_rate
from efficient_attention.attention.dropout import hash_in_index, is_kept, row_seeds
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.routing.centroids import (
    attach_centroid_statistics,
    layer_norm,
    nearest_tokens,
    score_centroids,
)
from efficient_attention.attention.routing.definition import Routing, check_request, valid_queries
from efficient_attention.attention.routing.windows import key_blocks, make_window_blocks, query_blocks, window_positions
from efficient_attention.attention.single_text_rows import repeat_key_heads, valid_keys
from efficient_attention.attention.slot_softmax import PairMasks, attend_slots

Places = Array | np.ndarray


class GroupVectors(NamedTuple):
    """Queries, keys and values of some heads, either in the order of the row or gathered into groups."""

    query: Shaped[Array, 'B H *tokens K']
    key: Shaped[Array, 'B H *tokens K']
    value: Shaped[Array, 'B H *tokens K']


@dataclasses.dataclass(frozen=True)
class TokenGroups:
    """The indices and segments of the tokens in each group; the axes B and H may have size 1.

    Args:
        query_BHgs: int32; the indices of queries in the row.
        key_BHgm: int32; the indices of keys in the row.
        query_segments_BHgs: the queries' segments; None if all tokens are of one segment.
        key_segments_BHgm: the keys' segments, 0 where there is no key.
        first_head: the index of the first head.
        heads: the number of heads.
    """

    query_BHgs: Places
    key_BHgm: Places
    query_segments_BHgs: Array | None
    key_segments_BHgm: Array | None
    first_head: int
    heads: int


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of routing attention; supports padding, segments, grouped heads and dropout of weights."""
    check_request(request)
    local, heads = ensure_kind(Routing, request.mechanism).local_heads, request.query.shape[2]
    query_BLHK, key_BLHK, value_BLHK = (
        request.query,
        repeat_key_heads(request.key, heads),
        repeat_key_heads(request.value, heads),
    )
    rows = (query_BLHK, key_BLHK, value_BLHK)
    found = [attend_clusters(request, GroupVectors(*(x_BLHK[:, :, local:] for x_BLHK in rows)))]
    if local:
        found.insert(0, attend_windows(request, GroupVectors(*(x_BLHK[:, :, :local] for x_BLHK in rows))))
    return jnp.concatenate(found, axis=1).swapaxes(1, 2).astype(request.query.dtype), None


def attend_clusters(request: Request, rows: GroupVectors) -> Float[Array, 'B H L K']:
    """Returns the float32 output of the heads with clusters, from vectors [B, L, H, K]."""
    mechanism, dtype, centroids_HCX = (
        ensure_kind(Routing, request.mechanism),
        rows.value.dtype,
        request.learned_operand('centroids'),
    )
    query_BHLK, key_BHLK = (layer_norm(x_BLHK.swapaxes(1, 2)) for x_BLHK in (rows.query, rows.key))
    queries = score_centroids(query_BHLK, centroids_HCX, valid_queries(request))
    keys = score_centroids(key_BHLK, centroids_HCX, valid_keys(request))
    query_BHCw, key_BHCw = (nearest_tokens(near, mechanism.size) for near in (queries, keys))
    query_BHLK = query_BHLK * (1.0 / math.sqrt(query_BHLK.shape[3]))
    by_head = GroupVectors(*(x.astype(dtype) for x in (query_BHLK, key_BHLK, rows.value.swapaxes(1, 2))))
    groups = TokenGroups(
        query_BHCw,
        key_BHCw,
        None if request.segments is None else gather_tokens(request.segments.query[:, None], query_BHCw),
        None if request.segments is None else gather_tokens(request.segments.key[:, None], key_BHCw),
        mechanism.local_heads,
        query_BHLK.shape[1],
    )
    taken = GroupVectors(
        gather_tokens(by_head.query, query_BHCw),
        gather_tokens(by_head.key, key_BHCw),
        gather_tokens(by_head.value, key_BHCw),
    )
    out_BHCwK, has_key_BHCw = attend_groups(request, taken, groups)
    out_BHLK = average_over_clusters(out_BHCwK, has_key_BHCw, query_BHCw, query_BHLK.shape[2])
    return attach_centroid_statistics(out_BHLK, centroids_HCX, queries, keys)


def attend_windows(request: Request, rows: GroupVectors) -> Float[Array, 'B H L K']:
    """Returns the float32 output of the local heads, from vectors [B, L, H, K]."""
    mechanism, (length, width) = ensure_kind(Routing, request.mechanism), rows.query.shape[1::2]
    cut = make_window_blocks(length, mechanism.window, causal=mechanism.causal)
    query_BHLK, key_BHLK, value_BHLK = (x_BLHK.swapaxes(1, 2) for x_BLHK in rows)
    query_BHLK = query_BHLK * (1.0 / math.sqrt(width))
    blocks = GroupVectors(query_blocks(query_BHLK, cut), key_blocks(key_BHLK, cut), key_blocks(value_BHLK, cut))
    is_whole = cut.blocks == 1 and request.segments is None
    ones_1L = jnp.ones((1, length), jnp.int32)
    query_bL, key_bL = (ones_1L, ones_1L) if request.segments is None else request.segments
    groups = TokenGroups(
        *window_positions(cut),
        None if is_whole else query_blocks(query_bL[:, None], cut),
        None if is_whole else key_blocks(key_bL[:, None], cut),
        0,
        mechanism.local_heads,
    )
    out_BHnsK, _ = attend_groups(request, blocks, groups, window=mechanism.window)
    return out_BHnsK.reshape(*out_BHnsK.shape[:2], -1, width)[:, :, :length]


def attend_groups(
    request: Request, vectors: GroupVectors, groups: TokenGroups, window: int | None = None
) -> tuple[Float[Array, 'B H g s K'], Bool[Array, '#B #H #g #s']]:
    """Returns the float32 softmax attention of scaled queries over the keys of their own group, and which queries may
    read at least one key.
    """
    allowed_BHgsm = allowed_pairs(groups, window, causal=ensure_kind(Routing, request.mechanism).causal)
    pairs = PairMasks(allowed_BHgsm, dropout_pair_mask(request, groups))
    out_BHgsK = attend_slots(vectors.query, vectors.key, vectors.value, pairs, dropout_rate(request))
    return out_BHgsK, jnp.ones((1, 1, 1, 1), bool) if allowed_BHgsm is None else allowed_BHgsm.any(axis=-1)


def allowed_pairs(groups: TokenGroups, window: int | None, *, causal: bool) -> Bool[Array, 'b h g s m'] | None:
    """Returns which query-key pairs of a group are allowed by segment, window and causality; None means all pairs."""
    query_BHgs1, key_BHg1m = jnp.asarray(groups.query_BHgs)[..., None], jnp.asarray(groups.key_BHgm)[..., None, :]
    masks = []
    if groups.query_segments_BHgs is not None and groups.key_segments_BHgm is not None:
        segments_BHg1m = groups.key_segments_BHgm[..., None, :]
        masks.append((groups.query_segments_BHgs[..., None] == segments_BHg1m) & (segments_BHg1m != 0))
    if causal:
        masks.append(key_BHg1m <= query_BHgs1)
    if window is not None and masks:  # without other masks the whole row fits in the window
        masks.append(jnp.abs(query_BHgs1 - key_BHg1m) <= window)
    return functools.reduce(jnp.logical_and, masks) if masks else None


def dropout_pair_mask(request: Request, groups: TokenGroups) -> Bool[Array, 'B H g s m'] | None:
    """Returns which query-key pairs dropout keeps; a pair is treated alike in all its clusters. None if dropout is off.

    The random bits equal the bits of `dropout.dropout_keep_mask`.
    """
    if request.dropout is None:
        return None
    rate, rng = request.dropout
    heads_H = jnp.arange(groups.heads) + groups.first_head
    seeds_BH = hash_in_index(row_seeds(rng, len(request.query))[:, None], heads_H[None])
    bits_BHgs = hash_in_index(seeds_BH[:, :, None, None], jnp.asarray(groups.query_BHgs))
    bits_BHgsm = hash_in_index(bits_BHgs[..., None], jnp.asarray(groups.key_BHgm)[..., None, :])
    return is_kept(bits_BHgsm, rate)


def gather_tokens(
    x_BhL: Shaped[Array, 'B h L *rest'], places_BHCw: Int[Array, 'B H C w']
) -> Shaped[Array, 'B H C w *rest']:
    """Returns the tokens at these indices, gathered separately for each row and head."""
    x_BHL = jnp.broadcast_to(x_BhL, (*places_BHCw.shape[:2], *x_BhL.shape[2:]))
    take = jax.vmap(jax.vmap(lambda x, places: x.at[places].get(mode='promise_in_bounds')))
    return take(x_BHL, places_BHCw)


def average_over_clusters(
    x_BHCwK: Float[Array, 'B H C w K'], has_key_bhCw: Bool[Array, '#B #H #C #w'], places_BHCw: Array, length: int
) -> Float[Array, 'B H L K']:
    """Returns each token's mean result over the clusters in which it may read any key;
    zeros if there is no such cluster.
    """

    def one_head(x_CwK: Array, has_key_Cw: Array, places_Cw: Array) -> Array:
        zeros_LK, zeros_L = jnp.zeros((length, x_CwK.shape[2])), jnp.zeros(length)
        total_LK = zeros_LK.at[places_Cw].add(x_CwK, mode='promise_in_bounds')
        count_L = zeros_L.at[places_Cw].add(has_key_Cw.astype(jnp.float32), mode='promise_in_bounds')
        return total_LK / jnp.maximum(count_L, 1.0)[:, None]

    has_key_BHCw = jnp.broadcast_to(has_key_bhCw, places_BHCw.shape)
    return jax.vmap(jax.vmap(one_head))(x_BHCwK, has_key_BHCw, places_BHCw)
