"""Computes the logits of a window of chunks in LSH attention, the mask of forbidden pairs, and the dropout of weights.

Axes as in `sorted_rounds.py`.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.dropout import hash_in_index, is_kept
from efficient_attention.attention.lsh.definition import SELF_LOGIT
from efficient_attention.attention.lsh.sorted_rounds import NO_RUN, LSHLayout
from efficient_attention.attention.lsh.windows import ChunkWindow, WindowVectors

NO_KEY_RUN = -2  # the run number of padding keys; differs from NO_RUN, so that padding queries do not match them


def window_logits(
    vectors: WindowVectors, window: ChunkWindow, layout: LSHLayout
) -> tuple[Float[Array, 'B H T g S m'], Bool[Array, 'B H T g S m']]:
    """Returns the float32 logits of a window, MASKED for forbidden pairs,
    and whether each pair is a position with itself.
    """
    logits_BHTgSm = float32_product('...SK,...mK->...Sm', vectors.q_BHTgSK, vectors.k_BHTgmK)
    is_self_BHTgSm = compare_pairs(jnp.equal, window.queries.places, window.keys.places)
    logits_BHTgSm = jnp.where(is_self_BHTgSm, SELF_LOGIT, logits_BHTgSm)
    forbidden_BHTgSm = forbidden_pairs(window, layout)
    if forbidden_BHTgSm is not None:
        logits_BHTgSm = jnp.where(forbidden_BHTgSm, MASKED, logits_BHTgSm)
    return logits_BHTgSm, is_self_BHTgSm


def float32_product(equation: str, left: Float[Array, '...'], right: Float[Array, '...']) -> Float[Array, '...']:
    """Returns the einsum of two arrays with sums in float32; `left` is first rounded to the dtype of `right`."""
    dtype = right.dtype
    return jnp.einsum(equation, left.astype(dtype), right, preferred_element_type=jnp.float32)


def compare_pairs(
    compare: Callable[[Array, Array], Array], query: Int[Array, 'B H T g S'], key: Int[Array, 'B H T g m']
) -> Bool[Array, 'B H T g S m']:
    """Returns `compare(query, key)` for every query and every key that the query's chunk reads."""
    return compare(query[..., :, None], key[..., None, :])


def forbidden_pairs(window: ChunkWindow, layout: LSHLayout) -> Bool[Array, 'B H T g S m'] | None:
    """Returns which query-key pairs of a window are forbidden; None if all pairs are allowed.

    Forbidden are pairs of different segments (or buckets), later keys if causal, and with `deduplicate` pairs that an
    earlier round found.
    """
    queries, keys, masks = window.queries, window.keys, []
    if queries.runs is not None and keys.runs is not None:
        key_runs_BHTgm = jnp.where(keys.runs == NO_RUN, NO_KEY_RUN, keys.runs)
        masks.append(compare_pairs(jnp.not_equal, queries.runs, key_runs_BHTgm))
    if layout.causal:
        query_positions_BHTgS, key_positions_BHTgm = (
            tokens.places if tokens.positions is None else tokens.positions for tokens in (queries, keys)
        )
        masks.append(compare_pairs(jnp.less, query_positions_BHTgS, key_positions_BHTgm))
    for number in range(layout.rounds - 1 if queries.chunks is not None else 0):
        masks.append(is_found_in_earlier_round(number, window, layout))
    return functools.reduce(jnp.logical_or, masks) if masks else None


def is_found_in_earlier_round(number: int, window: ChunkWindow, layout: LSHLayout) -> Bool[Array, 'B H T g S m']:
    """Returns which query-key pairs of a window already shared a chunk in hash round `number`; False for pairs of this
    round and of earlier rounds.
    """
    assert window.queries.chunks is not None and window.keys.chunks is not None
    query_chunks_BHTgS, key_chunks_BHTgm = window.queries.chunks[..., number], window.keys.chunks[..., number]
    is_later_T11 = (number < window.numbers_T)[:, None, None]
    query_chunks_BHTgS, previous_BHTgS = (
        jnp.where(is_later_T11, chunks_BHTgS, -1)
        for chunks_BHTgS in (query_chunks_BHTgS, (query_chunks_BHTgS - layout.previous_chunks) % layout.chunk_count)
    )
    found_BHTgSm = compare_pairs(jnp.equal, query_chunks_BHTgS, key_chunks_BHTgm)
    found_BHTgSm |= compare_pairs(jnp.equal, previous_BHTgS, key_chunks_BHTgm)
    if window.queries.buckets is None or window.keys.buckets is None:
        return found_BHTgSm
    query_buckets_BHTgS, key_buckets_BHTgm = window.queries.buckets[..., number], window.keys.buckets[..., number]
    return found_BHTgSm & compare_pairs(jnp.equal, query_buckets_BHTgS, key_buckets_BHTgm)


def apply_dropout_factor(weights_BHTgSm: Array, factor_BHTgSm: Array | None) -> Float[Array, 'B H T g S m']:
    """Returns attention weights, or their gradients, times the dropout factor; unchanged if the factor is None."""
    return weights_BHTgSm if factor_BHTgSm is None else weights_BHTgSm * factor_BHTgSm


def dropout_factor(window: ChunkWindow, layout: LSHLayout) -> Float[Array, 'B H T g S m'] | None:
    """Returns the dropout factor 0 or 1 / (1 - rate) of each query-key pair,
    equal in all hash rounds; None without dropout.

    The random bits equal the bits of `dropout.dropout_keep_mask`.
    """
    if window.seeds_BH is None:
        return None
    bits_BHTgS = hash_in_index(window.seeds_BH[:, :, None, None, None], window.queries.places)
    bits_BHTgSm = hash_in_index(bits_BHTgS[..., None], window.keys.places[..., None, :])
    keep_BHTgSm = is_kept(bits_BHTgSm, layout.dropout_rate)
    return keep_BHTgSm.astype(jnp.float32) * (1.0 / (1.0 - layout.dropout_rate))
