"""Builds the window that a loop step of LSH attention reads: a few neighbouring chunks
of the sorted order and the chunk before them.

Axes as in `sorted_rounds.py`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, Shaped

from efficient_attention.attention.dropout import hash_in_index, row_seeds
from efficient_attention.attention.lsh.definition import inverse_query_norm
from efficient_attention.attention.lsh.sorted_rounds import HashRounds, LSHLayout
from efficient_attention.attention.lsh.sorting import take_along_rows
from efficient_attention.attention.request import Request


class LSHMaskInputs(NamedTuple):
    """Arrays, ordered by position, that the masks and the dropout of LSH attention read; None for arrays that the call
    does not need.
    """

    positions_BHL: Array | None  # None means positions 0, 1, ... in the row
    chunks_BHLT: Array | None  # each token's chunk in each hash round, to find pairs of earlier rounds
    buckets_BHLT: Array | None  # each token's bucket in each hash round, to find pairs of earlier rounds
    seeds_BH: Array | None  # seeds from which dropout bits are hashed


class RowVectors(NamedTuple):
    """The queries q, the values and the factors 1 / |q| of whole rows, in the order of positions. A query times its
    factor is the key of the same position.
    """

    q_BHLK: Array
    v_BHLK: Array
    scale_BHL: Array


class WindowVectors(NamedTuple):
    """The query vectors of a window of chunks, and the key and value vectors that these queries read."""

    q_BHTgSK: Array
    k_BHTgmK: Array
    v_BHTgmK: Array


class WindowTokens(NamedTuple):
    """Properties of a window's tokens that masks and dropout read; None for properties that the call does not need."""

    places: Int[Array, '*slots']  # index of the token in its row
    positions: Int[Array, '*slots'] | None
    runs: Int[Array, '*slots'] | None
    chunks: Int[Array, '*slots T'] | None  # the number of the token's chunk in each hash round
    buckets: Int[Array, '*slots T'] | None  # the number of the token's bucket in each hash round


class ChunkedRounds(NamedTuple):
    """The sorted order of hash rounds, cut into chunks; in front of each round is a copy of its last chunk."""

    numbers_T: Array
    order_BHTcS: Array
    runs_BHTcS: Array | None


class ChunkWindow(NamedTuple):
    """The g chunks that one loop step computes, the chunk before them, and the properties of their tokens."""

    start: tuple[Array, Array]  # indices of the window's first hash round and first chunk
    order_BHTcS: Array
    queries: WindowTokens  # properties of the window's queries [B, H, T, g, S]
    keys: WindowTokens  # properties of the keys that these queries read [B, H, T, g, m]
    numbers_T: Array
    seeds_BH: Array | None


def make_mask_inputs(request: Request, layout: LSHLayout, rounds: HashRounds, buckets_BHTL: Array) -> LSHMaskInputs:
    """Returns the arrays that masks and dropout of this attention request read, in the order of positions."""
    shape_BHL = rounds.slots_BHTL[:, :, 0].shape
    positions_BHL = chunks_BHLT = buckets_BHLT = seeds_BH = None
    if layout.causal and not request.has_default_positions:
        positions_BHL = jnp.broadcast_to(jnp.asarray(request.positions.query)[:, None], shape_BHL)
    if layout.deduplicate and layout.rounds > 1:
        chunks_BHLT = jnp.moveaxis(rounds.slots_BHTL // jnp.int32(layout.size), 2, 3)
        buckets_BHLT = jnp.moveaxis(buckets_BHTL, 2, 3) if layout.within_buckets else None
    if request.dropout is not None:
        heads_H = jnp.arange(shape_BHL[1])
        seeds_BH = hash_in_index(row_seeds(request.dropout.rng, shape_BHL[0])[:, None], heads_H[None])
    return LSHMaskInputs(positions_BHL, chunks_BHLT, buckets_BHLT, seeds_BH)


def cut_into_chunks(rounds: HashRounds, layout: LSHLayout) -> ChunkedRounds:
    """Returns the sorted order of each hash round, cut into chunks. If queries also read the chunk before their own, a
    copy of the last chunk is put in front.
    """

    def cut(x_BHTs: Array) -> Array:
        x_BHTnS = x_BHTs.reshape(*x_BHTs.shape[:3], layout.chunk_count, layout.size)
        return jnp.concatenate([x_BHTnS[:, :, :, -1:], x_BHTnS], axis=3) if layout.previous_chunks else x_BHTnS

    runs_BHTcS = None if rounds.runs_BHTs is None else cut(rounds.runs_BHTs)
    return ChunkedRounds(rounds.numbers_T, cut(rounds.order_BHTs), runs_BHTcS)


def make_window(
    start: tuple[Array, Array],
    count: tuple[int, int],
    layout: LSHLayout,
    rounds: ChunkedRounds,
    mask_inputs: LSHMaskInputs,
) -> ChunkWindow:
    """Returns the window of `count` hash rounds and chunks that begins at the round and chunk in `start`."""

    def cut(x_BHTcS: Array) -> Array:
        return slice_rounds_and_chunks(x_BHTcS, start, (count[0], count[1] + layout.previous_chunks))

    order_BHTcS = cut(rounds.order_BHTcS)
    tokens = WindowTokens(
        order_BHTcS,
        None if mask_inputs.positions_BHL is None else take_at_slots(mask_inputs.positions_BHL, order_BHTcS),
        None if rounds.runs_BHTcS is None else cut(rounds.runs_BHTcS),
        None if mask_inputs.chunks_BHLT is None else take_at_slots(mask_inputs.chunks_BHLT, order_BHTcS),
        None if mask_inputs.buckets_BHLT is None else take_at_slots(mask_inputs.buckets_BHLT, order_BHTcS),
    )
    queries = jax.tree.map(lambda x: x[:, :, :, layout.previous_chunks :], tokens)
    keys = jax.tree.map(lambda x: with_previous_chunk(x, layout), tokens)
    numbers_T = jax.lax.dynamic_slice_in_dim(rounds.numbers_T, start[0], count[0])
    return ChunkWindow(start, order_BHTcS, queries, keys, numbers_T, mask_inputs.seeds_BH)


def with_previous_chunk(x: Shaped[Array, 'B H T c S *rest'], layout: LSHLayout) -> Shaped[Array, 'B H T g m *rest']:
    """Returns, for each of the last g chunks, the entries that its queries read: the entries of the chunk before, if
    any, and of the chunk itself.
    """
    return jnp.concatenate([x[:, :, :, :-1], x[:, :, :, 1:]], axis=4) if layout.previous_chunks else x


def slice_start_indices(start: tuple[Array, Array], axes: int) -> tuple[Array, ...]:
    """Returns the int32 start indices of the hash round and chunk in `start`, for slices of an array [B, H, T, n, ...].

    JAX may count in 64 bits, and all start indices must share one dtype.
    """
    zero = jnp.int32(0)
    return (zero, zero, *(place.astype(jnp.int32) for place in start), *(zero,) * (axes - 4))


def slice_rounds_and_chunks(
    x: Shaped[Array, 'B H T n *rest'], start: tuple[Array, Array], count: tuple[int, int]
) -> Shaped[Array, 'B H _ _ *rest']:
    """Returns `count` hash rounds and chunks of `x`, beginning at the round and chunk in `start`."""
    return jax.lax.dynamic_slice(
        x, slice_start_indices(start, x.ndim), (*x.shape[:2], *count, *x.shape[4:]), allow_negative_indices=False
    )


def take_at_slots(x: Shaped[Array, 'B H L *rest'], order_BHTcS: Array) -> Shaped[Array, 'B H T c S *rest']:
    """Returns the entries of `x` in sorted order, at the positions in `order_BHTcS`."""
    taken = take_along_rows(x, order_BHTcS.reshape(*order_BHTcS.shape[:2], -1))
    return taken.reshape(*order_BHTcS.shape, *x.shape[3:])


def take_at_queries(
    x: Shaped[Array, 'B H L *rest'], window: ChunkWindow, layout: LSHLayout
) -> Shaped[Array, 'B H T g S *rest']:
    """Returns the entries of `x` at the positions of a window's queries."""
    return take_at_slots(x, window.order_BHTcS[:, :, :, layout.previous_chunks :])


def make_row_vectors(q_BHLK: Array, v_BHLK: Array) -> RowVectors:
    """Returns whole rows' queries and values, with the factors 1 / |q| that turn queries into keys."""
    return RowVectors(q_BHLK, v_BHLK, inverse_query_norm(q_BHLK))


def window_vectors(rows: RowVectors, window: ChunkWindow, layout: LSHLayout) -> WindowVectors:
    """Returns the vectors of a window's queries, and of the keys and values that these queries read."""
    # The barrier prevents XLA from gathering the scale again for each element of the matrix products' operands.
    q_BHTcSK, v_BHTcSK, scale_BHTcS = jax.lax.optimization_barrier(
        tuple(take_at_slots(vectors, window.order_BHTcS) for vectors in rows)
    )
    k_BHTcSK = (q_BHTcSK.astype(jnp.float32) * scale_BHTcS[..., None]).astype(q_BHTcSK.dtype)
    return WindowVectors(
        q_BHTcSK[:, :, :, layout.previous_chunks :],
        with_previous_chunk(k_BHTcSK, layout),
        with_previous_chunk(v_BHTcSK, layout),
    )
