"""Computes the forward pass of LSH attention: softmax sums of each hash round,
brought to the order of positions and merged.

Axes as in `sorted_rounds.py`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.lsh.chunk_loops import loop_over_windows, put_chunks, reduce_over_rounds
from efficient_attention.attention.lsh.scores import (
    apply_dropout_factor,
    dropout_factor,
    float32_product,
    window_logits,
)
from efficient_attention.attention.lsh.sorted_rounds import HashRounds, LSHLayout
from efficient_attention.attention.lsh.sorting import take_along_rows
from efficient_attention.attention.lsh.windows import ChunkWindow, LSHMaskInputs, RowVectors, window_vectors


class SoftmaxSums(NamedTuple):
    """The numerators, maxima and denominators of a softmax before the division, in float32,
    in sorted order or by position.
    """

    out: Float[Array, '*queries K']  # numerator: sum of exp(logit - maximum) v
    maximum: Float[Array, '*queries']  # largest logit; MASKED for a query without keys
    total: Float[Array, '*queries']  # denominator: sum of exp(logit - maximum)


def softmax_sums_of_all_rounds(
    layout: LSHLayout, rows: RowVectors, rounds: HashRounds, mask_inputs: LSHMaskInputs
) -> SoftmaxSums:
    """Returns the softmax sums over all hash rounds in the order of positions:
    numerators [B, H, L, K], maxima and totals [B, H, L].
    """
    shape_BHL = rows.q_BHLK.shape[:3]
    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    start = SoftmaxSums(zeros(rows.v_BHLK.shape), jnp.full(shape_BHL, MASKED, jnp.float32), zeros(shape_BHL))
    return reduce_over_rounds(
        lambda some_rounds: round_sums(layout, rows, some_rounds, mask_inputs),
        lambda *pair: merge_sums(list(pair)),
        start,
        layout,
        rounds,
    )


def round_sums(layout: LSHLayout, rows: RowVectors, rounds: HashRounds, mask_inputs: LSHMaskInputs) -> SoftmaxSums:
    """Returns the softmax sums over the given hash rounds, in the order of positions."""

    def step(window: ChunkWindow, buffers: SoftmaxSums) -> SoftmaxSums:
        vectors = window_vectors(rows, window, layout)
        logits_BHTgSm, _ = window_logits(vectors, window, layout)
        maximum_BHTgS = logits_BHTgSm.max(axis=-1)
        # If all keys of a query are masked, its maximum is MASKED; MASKED / 2 then keeps the exponentials at 0.
        weights_BHTgSm = jnp.exp(logits_BHTgSm - jnp.maximum(maximum_BHTgS, MASKED / 2)[..., None])
        dropped_BHTgSm = apply_dropout_factor(weights_BHTgSm, dropout_factor(window, layout))
        out_BHTgSK = float32_product('...Sm,...mK->...SK', dropped_BHTgSm, vectors.v_BHTgmK)
        sums = SoftmaxSums(out_BHTgSK, maximum_BHTgS, weights_BHTgSm.sum(axis=-1))
        return jax.tree.map(lambda buffer, x: put_chunks(buffer, x, window.start), buffers, sums)

    shape_BHTnS = (*rounds.order_BHTs.shape[:3], layout.chunk_count, layout.size)
    shapes = (*shape_BHTnS, rows.v_BHLK.shape[-1]), shape_BHTnS, shape_BHTnS
    by_slot = loop_over_windows(
        step, layout, rounds, mask_inputs, SoftmaxSums(*(jnp.zeros(shape, jnp.float32) for shape in shapes))
    )
    return merge_sums(
        [
            jax.tree.map(lambda x, n=n: order_by_position(x[:, :, n], rounds, n), by_slot)
            for n in hash_round_range(rounds)
        ]
    )


def order_by_position(
    x: Shaped[Array, 'B H n S *rest'], rounds: HashRounds, number: int, skip: int = 0
) -> Shaped[Array, 'B H L *rest']:
    """Returns the array of one hash round in the order of positions; `number` is the round's index on axis T.

    The first `skip` slots are left out.
    """
    return take_along_rows(x.reshape(*x.shape[:2], -1, *x.shape[4:]), rounds.slots_BHTL[:, :, number] + skip)


def hash_round_range(rounds: HashRounds) -> range:
    """Returns the indices of hash rounds along axis T, as a range for Python loops.

    Sums over T are written term by term over these indices, so that XLA fuses the gathers into the sums.
    """
    return range(rounds.slots_BHTL.shape[2])


def merge_sums(parts: list[SoftmaxSums]) -> SoftmaxSums:
    """Returns the softmax sums over the keys of all `parts`, rescaled to the largest of the parts' maxima."""
    maximum_BHL = functools.reduce(jnp.maximum, [part.maximum for part in parts])
    shares_BHL = [jnp.exp(part.maximum - maximum_BHL) for part in parts]
    terms = [
        SoftmaxSums(part.out * share_BHL[..., None], maximum_BHL, part.total * share_BHL)
        for part, share_BHL in zip(parts, shares_BHL, strict=True)
    ]
    return SoftmaxSums(
        sum_arrays([term.out for term in terms]), maximum_BHL, sum_arrays([term.total for term in terms])
    )


def sum_arrays(terms: list[Array]) -> Array:
    """Returns the sum of the arrays in a list, added in order."""
    return functools.reduce(jnp.add, terms)
