"""Computes linear attention of a chunk's queries: over the keys of their own chunk by a masked product, over earlier
keys through sums over keys.

Axes: G key heads with h query heads each, C queries and c keys of a chunk, R features, K head width.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.dense_attention import MASKED, masked_softmax
from efficient_attention.attention.features.feature_map import LOWEST_LOG, divide_sums, query_features
from efficient_attention.attention.features.key_sums import KeySums, read_sums

Outputs = tuple[Array, Array]  # attention outputs [B, G, h, C, K] and log-sum-exp [B, G, h, C]


class ChunkKeys(NamedTuple):
    """The keys that a chunk's queries read: sums over all keys before the chunk, and the chunk's own keys and values.

    `before` has the sums before the chunk; `scaled` has them on the scale of the chunk. The chunk's keys come as
    logarithms and, on that scale, as features.
    """

    before: KeySums
    scaled: KeySums
    logs_BGcR: Array
    features_BGcR: Array
    value_BGcK: Array


# Arguments: log features of queries [B, G, h, C, R], the keys, and the mask of allowed pairs [1 or B, C, c].
# The last argument [B, 1, 1, C] says which queries read the sums over earlier keys; None means all queries.
AttendChunk = Callable[[Array, ChunkKeys, Array, Array | None], Outputs]


def attend_chunk(query_logs_BGhCR: Array, keys: ChunkKeys, allowed_bCc: Array, is_open_B11C: Array | None) -> Outputs:
    """Returns outputs and log-sum-exp of a chunk's queries over the allowed keys of their chunk and the sums of earlier
    keys.

    Where `is_open_B11C` is False, the sums are not read.
    """
    query_BGhCR, scale_BGhC = query_features(query_logs_BGhCR, keys.scaled.stabiliser_BGR[:, :, None, None])
    inside_BGhCc = jnp.einsum('BGhCR,BGcR->BGhCc', query_BGhCR, keys.features_BGcR)
    inside_BGhCc = jnp.where(allowed_bCc[:, None, None], inside_BGhCc, 0.0)
    before_BGhCK, total_BGhC = read_sums(query_BGhCR, keys.scaled)
    if is_open_B11C is not None:
        before_BGhCK = jnp.where(is_open_B11C[..., None], before_BGhCK, 0.0)
        total_BGhC = jnp.where(is_open_B11C, total_BGhC, 0.0)
    numerator_BGhCK = before_BGhCK + jnp.einsum('BGhCc,BGcK->BGhCK', inside_BGhCc, keys.value_BGcK)
    return divide_sums(numerator_BGhCK, total_BGhC + inside_BGhCc.sum(axis=-1), scale_BGhC)


def attend_chunk_exactly(
    query_logs_BGhCR: Array, keys: ChunkKeys, allowed_bCc: Array, is_open_B11C: Array | None
) -> Outputs:
    """Computes the same attention as `attend_chunk`, but without underflow: it computes the logarithm of the weight of
    each query-key pair in the chunk.

    Queries are computed one at a time.
    """
    inside_BGhCK, inside_lse_BGhC = attend_within_chunk(query_logs_BGhCR, keys, allowed_bCc)
    query_BGhCR, scale_BGhC = query_features(query_logs_BGhCR, keys.before.stabiliser_BGR[:, :, None, None])
    numerator_BGhCK, total_BGhC = read_sums(query_BGhCR, keys.before)
    total_BGhC = total_BGhC if is_open_B11C is None else jnp.where(is_open_B11C, total_BGhC, 0.0)
    before_BGhCK, before_lse_BGhC = divide_sums(numerator_BGhCK, total_BGhC, scale_BGhC)
    share_BGhC = jax.nn.sigmoid(inside_lse_BGhC - before_lse_BGhC)
    out_BGhCK = before_BGhCK + share_BGhC[..., None] * (inside_BGhCK - before_BGhCK)
    return out_BGhCK, jnp.logaddexp(inside_lse_BGhC, before_lse_BGhC)


def find_queries_with_features(
    query_logs_BGhCR: Array, keys: ChunkKeys, allowed_bCc: Array, is_open_B11C: Array | None
) -> Outputs:
    """Marks the queries that share a non-zero feature with a readable key: returns a log-sum-exp of 0 for them,
    `MASKED` for all others, and zeros as outputs.
    """
    query_BGhCR, inside_BGcR, before_BGR = (
        (jax.lax.stop_gradient(logs) > LOWEST_LOG / 2).astype(jnp.float32)
        for logs in (query_logs_BGhCR, keys.logs_BGcR, keys.before.stabiliser_BGR)
    )
    shared_BGhCc = jnp.einsum('BGhCR,BGcR->BGhCc', query_BGhCR, inside_BGcR)
    shared_BGhC = jnp.where(allowed_bCc[:, None, None], shared_BGhCc, 0.0).max(axis=-1)
    open_BGhC = jnp.einsum('BGhCR,BGR->BGhC', query_BGhCR, before_BGR)
    open_BGhC = open_BGhC if is_open_B11C is None else jnp.where(is_open_B11C, open_BGhC, 0.0)
    lse_BGhC = jnp.where(jnp.maximum(shared_BGhC, open_BGhC) > 0.5, 0.0, MASKED)
    return jnp.zeros((*lse_BGhC.shape, keys.value_BGcK.shape[-1])), lse_BGhC


def attend_within_chunk(query_logs_BGhCR: Array, keys: ChunkKeys, allowed_bCc: Array) -> Outputs:
    """Returns outputs and log-sum-exp of queries that read only the allowed keys of their own chunk.

    Logits are the logarithms of each pair's product of features.
    """

    @jax.checkpoint
    def pair_logits(query_logs_BGhR: Array) -> Array:
        return jax.nn.logsumexp(query_logs_BGhR[:, :, :, None] + keys.logs_BGcR[:, :, None], axis=-1)

    logits_CBGhc = jax.lax.map(pair_logits, jnp.moveaxis(query_logs_BGhCR, 3, 0))
    logits_BGhCc = jnp.moveaxis(logits_CBGhc, 0, 3)
    exists_BG1c = (keys.logs_BGcR > MASKED / 2).any(axis=-1)[:, :, None, None]
    allowed_BGhCc = allowed_bCc[:, None, None] & exists_BG1c & (logits_BGhCc > LOWEST_LOG / 2)
    weights_BGhCc, lse_BGhC = (
        x.reshape(*logits_BGhCc.shape[:3], *x.shape[2:])
        for x in masked_softmax(*map(merge_head_axes, (logits_BGhCc, allowed_BGhCc)))
    )
    return jnp.einsum('BGhCc,BGcK->BGhCK', weights_BGhCc, keys.value_BGcK), lse_BGhC


def merge_head_axes(x: Shaped[Array, '...']) -> Array:
    """Returns an array [B, G, h, ...] as [B, G h, ...]: key heads and the query heads
    of each key head become one axis.
    """
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def causal_chunk_mask(size: int) -> Array:
    """Returns the causal mask [1, C, c] within a chunk: True where the key is at or before the query."""
    return jnp.tril(jnp.ones((1, size, size), bool))
