"""Computes the backward pass of LSH attention, which recomputes the attention weights step by step
from the saved softmax statistics.

Axes as in `sorted_rounds.py`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.lsh.chunk_loops import add_chunks, loop_over_windows, put_chunks, reduce_over_rounds
from efficient_attention.attention.lsh.forward_pass import hash_round_range, order_by_position, sum_arrays
from efficient_attention.attention.lsh.scores import (
    apply_dropout_factor,
    dropout_factor,
    float32_product,
    window_logits,
)
from efficient_attention.attention.lsh.sorted_rounds import HashRounds, LSHLayout
from efficient_attention.attention.lsh.windows import (
    ChunkWindow,
    LSHMaskInputs,
    RowVectors,
    take_at_queries,
    window_vectors,
)


class BackwardQueryInputs(NamedTuple):
    """Arrays with one entry per query that the backward pass of LSH attention reads."""

    dout_BHLK: Array
    statistics_BHL3: Array  # float32 per query: maximum, 1 / sum of exponentials, and rowsum(dout * out) - dlse


class PositionGradients(NamedTuple):
    """Float32 gradients of queries, keys and values, in the order of positions."""

    dq_BHLK: Array
    dk_BHLK: Array
    dv_BHLK: Array


class SlotGradients(NamedTuple):
    """Float32 gradients of queries, keys and values, in sorted order. The gradients of keys and values begin with the
    gradients of a copy of the last chunk.
    """

    dq_BHTnSK: Array
    dk_BHTcSK: Array
    dv_BHTcSK: Array


def gradients_of_all_rounds(
    layout: LSHLayout, rows: RowVectors, rounds: HashRounds, mask_inputs: LSHMaskInputs, by_query: BackwardQueryInputs
) -> PositionGradients:
    """Returns the gradients of queries, keys and values, summed over all hash rounds.

    The gradient of the unit-vector keys is separate; the caller passes it on to the queries.
    """
    likes = rows.q_BHLK, rows.q_BHLK, rows.v_BHLK
    return reduce_over_rounds(
        lambda some_rounds: round_gradients(layout, rows, some_rounds, mask_inputs, by_query),
        lambda *pair: jax.tree.map(jnp.add, *pair),
        PositionGradients(*(jnp.zeros(like.shape, jnp.float32) for like in likes)),
        layout,
        rounds,
    )


def round_gradients(
    layout: LSHLayout, rows: RowVectors, rounds: HashRounds, mask_inputs: LSHMaskInputs, by_query: BackwardQueryInputs
) -> PositionGradients:
    """Returns the gradients of queries, keys and values, summed over the given hash rounds."""

    def step(window: ChunkWindow, buffers: SlotGradients) -> SlotGradients:
        dq_BHTgSK, dk_BHTgmK, dv_BHTgmK = window_gradients(rows, by_query, window, layout)
        return SlotGradients(
            put_chunks(buffers.dq_BHTnSK, dq_BHTgSK, window.start),
            add_chunks(buffers.dk_BHTcSK, add_to_source_chunks(dk_BHTgmK, layout), window.start),
            add_chunks(buffers.dv_BHTcSK, add_to_source_chunks(dv_BHTgmK, layout), window.start),
        )

    def buffer(like_BHLK: Array, before: int) -> Array:
        shape = (*rounds.order_BHTs.shape[:3], before + layout.chunk_count, layout.size, like_BHLK.shape[-1])
        return jnp.zeros(shape, jnp.float32)

    before = layout.previous_chunks
    start = SlotGradients(buffer(rows.q_BHLK, 0), buffer(rows.q_BHLK, before), buffer(rows.v_BHLK, before))
    totals = loop_over_windows(step, layout, rounds, mask_inputs, start)
    return PositionGradients(
        *(sum_by_position(total, layout, rounds, skip) for total, skip in zip(totals, (0, before, before), strict=True))
    )


def window_gradients(
    rows: RowVectors, by_query: BackwardQueryInputs, window: ChunkWindow, layout: LSHLayout
) -> tuple[Float[Array, 'B H T g S K'], Float[Array, 'B H T g m K'], Float[Array, 'B H T g m K']]:
    """Returns the float32 gradients of a window's queries, and of the keys and values that these queries read."""
    vectors = window_vectors(rows, window, layout)
    dout_BHTgSK = take_at_queries(by_query.dout_BHLK, window, layout)
    statistics_BHTgS3 = take_at_queries(by_query.statistics_BHL3, window, layout)
    maximum_BHTgS1, per_total_BHTgS1, delta_BHTgS1 = jnp.split(statistics_BHTgS3, 3, axis=-1)
    logits_BHTgSm, is_self_BHTgSm = window_logits(vectors, window, layout)
    weights_BHTgSm = jnp.exp(logits_BHTgSm - maximum_BHTgS1) * per_total_BHTgS1
    dweights_BHTgSm = float32_product('...SK,...mK->...Sm', dout_BHTgSK, vectors.v_BHTgmK)
    factor_BHTgSm = dropout_factor(window, layout)
    dropped_BHTgSm, dweights_BHTgSm = (
        apply_dropout_factor(weights_BHTgSm, factor_BHTgSm),
        apply_dropout_factor(dweights_BHTgSm, factor_BHTgSm),
    )
    dlogits_BHTgSm = jnp.where(is_self_BHTgSm, 0.0, weights_BHTgSm * (dweights_BHTgSm - delta_BHTgS1))
    return (
        float32_product('...Sm,...mK->...SK', dlogits_BHTgSm, vectors.k_BHTgmK),
        float32_product('...Sm,...SK->...mK', dlogits_BHTgSm, vectors.q_BHTgSK),
        float32_product('...Sm,...SK->...mK', dropped_BHTgSm, dout_BHTgSK),
    )


def add_to_source_chunks(x_BHTgmK: Float[Array, 'B H T g m K'], layout: LSHLayout) -> Float[Array, 'B H T c S K']:
    """Returns key or value gradients of g chunks of queries, added up for each chunk of keys;
    the transpose of `with_previous_chunk`.
    """
    if not layout.previous_chunks:
        return x_BHTgmK
    previous_BHTgSK, current_BHTgSK = jnp.split(x_BHTgmK, 2, axis=4)
    padding = [(0, 0)] * x_BHTgmK.ndim
    padding[3] = (0, 1)
    return jnp.pad(previous_BHTgSK, padding) + jnp.pad(current_BHTgSK, [*padding[:3], (1, 0), *padding[4:]])


def sum_by_position(x_BHTcSK: Array, layout: LSHLayout, rounds: HashRounds, before: int) -> Float[Array, 'B H L K']:
    """Moves an array from sorted order to the order of positions, and returns its sum over the hash rounds.

    `before` is the number of copied chunks in front of the first chunk, 0 or 1.
    """
    if before:  # the first chunk is a copy of the last chunk; the copy's gradients are added to the last chunk
        x_BHTcSK = add_chunks(x_BHTcSK, x_BHTcSK[:, :, :, :1], (jnp.int32(0), jnp.int32(layout.chunk_count)))
    return sum_arrays(
        [order_by_position(x_BHTcSK[:, :, n], rounds, n, before * layout.size) for n in hash_round_range(rounds)]
    )
