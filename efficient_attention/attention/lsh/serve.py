"""LSH attention in time and memory linear in the length; `definition` says what it computes.

The loops visit a few neighbouring chunks of the sorted order at a time: they gather the vectors of those and of the
chunk before, take a softmax over both, and keep each round's sums apart from its maximum until the rounds are merged.
The backward loop recomputes the weights from the merged maximum and total, as FlashAttention does (Dao et al. 2022,
arXiv 2205.14135): nothing of size L x chunk is stored, and no round waits for another. Results go back into the order
of positions by gathering, never by scattering sums: the same inputs give the same bits.

Axes here: B rows, H heads, T rounds, n chunks of S slots, g chunks of a step, K head width; N = n S slots.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.lsh.definition import make_layout, unit_keys
from efficient_attention.attention.lsh.rounds import Layout, Rounds, make_rounds
from efficient_attention.attention.lsh.sorting import take
from efficient_attention.attention.lsh.steps import add, over_rounds, put, run_steps
from efficient_attention.attention.lsh.windows import (
    ChunkWindow,
    Gathered,
    MaskInputs,
    Vectors,
    dropout_factor,
    make_gathered,
    make_mask_inputs,
    product,
    rows_of_queries,
    scores,
    window_rows,
)
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import MASKED


class Sums(NamedTuple):
    """A softmax before its division: sum of exp(logit - maximum) v, the maximum, sum of exp(logit - maximum)."""

    out: Array  # [..., K], float32
    maximum: Array  # MASKED where there is no key
    total: Array


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """LSH attention with segments, positions and dropout; no bias, no grouped heads, no cross attention."""
    layout = make_layout(request)
    rounds, buckets_BHTL = make_rounds(request, layout)
    mask_inputs = make_mask_inputs(request, layout, rounds, buckets_BHTL)
    q_BHLK, v_BHLK = request.query.swapaxes(1, 2), request.value.swapaxes(1, 2)
    out_BHLK, lse_BHL = attend_rounds(layout, q_BHLK, v_BHLK, rounds, mask_inputs)
    return out_BHLK.swapaxes(1, 2), lse_BHL


def round_sums(layout: Layout, x: Gathered, rounds: Rounds, mask_inputs: MaskInputs) -> Sums:
    """The sums over the given rounds, by position: [B, H, L, ...]."""

    def step(window: ChunkWindow, buffers: Sums) -> Sums:
        rows = window_rows(x, window, layout)
        logits, _ = scores(rows, window, layout)
        maximum = logits.max(axis=-1)
        # Where all keys are masked, maximum = MASKED: the second term keeps the exponential at 0.
        weights = jnp.exp(logits - jnp.maximum(maximum, MASKED / 2)[..., None])
        factor = dropout_factor(window, layout)
        dropped = weights if factor is None else weights * factor
        sums = Sums(product('...qm,...mK->...qK', dropped, rows.v), maximum, weights.sum(axis=-1))
        return jax.tree.map(lambda buffer, part: put(buffer, part, window.start), buffers, sums)

    shape = (*rounds.order_BHTN.shape[:3], layout.chunks, layout.size)
    start = Sums(*(jnp.zeros(sizes, jnp.float32) for sizes in ((*shape, x.v.shape[-1]), shape, shape)))
    by_slot = run_steps(step, layout, rounds, mask_inputs, start)
    return merge_sums(
        [jax.tree.map(lambda x, n=n: by_position(x[:, :, n], rounds, n), by_slot) for n in axis_numbers(rounds)]
    )


def by_position(x_BHnS: Array, rounds: Rounds, number: int, skip: int = 0) -> Array:
    """One round's array [B, H, n, S, ...] in the order of positions; the first `skip` slots are of no position."""
    return take(x_BHnS.reshape(*x_BHnS.shape[:2], -1, *x_BHnS.shape[4:]), rounds.slots_BHTL[:, :, number] + skip)


def axis_numbers(rounds: Rounds) -> range:
    """The rounds' places along axis T. Sums over it are written term by term: XLA then fuses the gathers into them."""
    return range(rounds.slots_BHTL.shape[2])


def merge_sums(parts: list[Sums]) -> Sums:
    """The sums over the union of the parts' keys."""
    maximum = functools.reduce(jnp.maximum, [part.maximum for part in parts])
    shares = [jnp.exp(part.maximum - maximum) for part in parts]
    terms = [
        Sums(part.out * share[..., None], maximum, part.total * share)
        for part, share in zip(parts, shares, strict=True)
    ]
    return Sums(add_up([term.out for term in terms]), maximum, add_up([term.total for term in terms]))


def add_up(terms: list[Array]) -> Array:
    """The sum of arrays, one after another."""
    return functools.reduce(jnp.add, terms)


def all_sums(layout: Layout, x: Gathered, rounds: Rounds, mask_inputs: MaskInputs) -> Sums:
    """The sums over all rounds, by position."""
    shape = x.q.shape[:3]
    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    start = Sums(zeros(x.v.shape), jnp.full(shape, MASKED, jnp.float32), zeros(shape))
    return over_rounds(
        lambda some_rounds: round_sums(layout, x, some_rounds, mask_inputs),
        lambda *pair: merge_sums(list(pair)),
        start,
        layout,
        rounds,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_rounds(
    layout: Layout, q_BHLK: Array, v_BHLK: Array, rounds: Rounds, mask_inputs: MaskInputs
) -> tuple[Array, Array]:
    """Output [B, H, L, K] in the query's dtype and log-sum-exp [B, H, L] over all rounds."""
    return forward(layout, q_BHLK, v_BHLK, rounds, mask_inputs)[0]


def forward(layout: Layout, q_BHLK: Array, v_BHLK: Array, rounds: Rounds, mask_inputs: MaskInputs) -> tuple[Any, Any]:
    """`attend_rounds`, and what its backward pass needs."""
    sums = all_sums(layout, make_gathered(q_BHLK, v_BHLK), rounds, mask_inputs)
    has_key = sums.total > 0.0
    total = jnp.where(has_key, sums.total, 1.0)
    out = (sums.out / total[..., None]).astype(q_BHLK.dtype)
    lse = jnp.where(has_key, sums.maximum + jnp.log(total), MASKED)
    # Not the log-sum-exp: rounded near -1e5, of a token that reads itself alone, it would be off by 0.4 %.
    statistics = jnp.where(has_key, sums.maximum, 0.0), 1.0 / total
    return (out, lse), (q_BHLK, v_BHLK, rounds, mask_inputs, out, statistics)


def backward(layout: Layout, kept: Any, cotangents: tuple[Array, Array]) -> tuple[Array, Array, None, None]:
    """Gradients of q and v."""
    q_BHLK, v_BHLK, rounds, mask_inputs, out, (maximum, per_total) = kept
    dout, dlse = cotangents
    delta = (dout.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1) - dlse
    saved = dout, jnp.stack([maximum, per_total, delta], axis=-1)
    x = make_gathered(q_BHLK, v_BHLK)
    start = Vectors(*(jnp.zeros(like.shape, jnp.float32) for like in (q_BHLK, q_BHLK, v_BHLK)))
    total = over_rounds(
        lambda some_rounds: round_gradients(layout, x, some_rounds, mask_inputs, saved),
        lambda *pair: jax.tree.map(jnp.add, *pair),
        start,
        layout,
        rounds,
    )
    _, from_keys = jax.vjp(unit_keys, q_BHLK.astype(jnp.float32))
    dq = total.q + from_keys(total.k)[0]
    return dq.astype(q_BHLK.dtype), total.v.astype(v_BHLK.dtype), None, None


attend_rounds.defvjp(forward, backward)


def round_gradients(
    layout: Layout, x: Gathered, rounds: Rounds, mask_inputs: MaskInputs, saved: tuple[Array, Array]
) -> Vectors:
    """float32 gradients of queries, keys and values by position [B, H, L, K], summed over the given rounds."""
    dout_BHLK, by_query = saved

    def step(window: ChunkWindow, buffers: Vectors) -> Vectors:
        rows = window_rows(x, window, layout)
        dout = rows_of_queries(dout_BHLK, window, layout)
        maximum, per_total, delta = jnp.split(rows_of_queries(by_query, window, layout), 3, axis=-1)
        logits, is_self = scores(rows, window, layout)
        weights = jnp.exp(logits - maximum) * per_total
        dweights = product('...qK,...mK->...qm', dout, rows.v)
        factor = dropout_factor(window, layout)
        dropped = weights if factor is None else weights * factor
        dweights = dweights if factor is None else dweights * factor
        dlogits = jnp.where(is_self, 0.0, weights * (dweights - delta))
        dk, dv = (apart(product('...qm,...qK->...mK', *pair), layout) for pair in ((dlogits, rows.q), (dropped, dout)))
        return Vectors(
            put(buffers.q, product('...qm,...mK->...qK', dlogits, rows.k), window.start),
            add(buffers.k, dk, window.start),
            add(buffers.v, dv, window.start),
        )

    def buffer(like: Array, before: int) -> Array:
        shape = (*rounds.order_BHTN.shape[:3], before + layout.chunks, layout.size, like.shape[-1])
        return jnp.zeros(shape, jnp.float32)

    before = layout.before
    totals = run_steps(
        step, layout, rounds, mask_inputs, Vectors(buffer(x.q, 0), buffer(x.q, before), buffer(x.v, before))
    )
    dq, dk, dv = (
        sum_by_position(total, layout, rounds, skip) for total, skip in zip(totals, (0, before, before), strict=True)
    )
    return Vectors(dq, dk, dv)


def apart(x: Array, layout: Layout) -> Array:
    """What g chunks read [B, H, T, g, (before + 1) S, K], as chunks [B, H, T, before + g, S, K]; the transpose of
    `with_previous`."""
    if not layout.before:
        return x
    previous, current = jnp.split(x, 2, axis=4)
    padding = [(0, 0)] * x.ndim
    padding[3] = (0, 1)
    return jnp.pad(previous, padding) + jnp.pad(current, [*padding[:3], (1, 0), *padding[4:]])


def sum_by_position(x: Array, layout: Layout, rounds: Rounds, before: int) -> Array:
    """Chunks [B, H, T, before + n, S, K], summed over the rounds in the order of positions."""
    if before:  # what stands before the first chunk belongs to the last one
        x = add(x, x[:, :, :, :1], (jnp.int32(0), jnp.int32(layout.chunks)))
    return add_up([by_position(x[:, :, n], rounds, n, before * layout.size) for n in axis_numbers(rounds)])
