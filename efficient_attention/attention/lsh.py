"""LSH attention in time and memory linear in the length; `lsh_definition` says what it computes.

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

from efficient_attention.attention.dense import MASKED
from efficient_attention.attention.dropout import fold_index, is_kept, row_seeds
from efficient_attention.attention.lsh_definition import (
    NO_RUN,
    SELF_LOGIT,
    Layout,
    Rounds,
    key_scale,
    make_layout,
    make_rounds,
    take,
    unit_keys,
)
from efficient_attention.attention.request import Request

NO_KEY_RUN = -2  # unlike NO_RUN, so that queries and keys that are no tokens do not match
# Bytes of float32 scores that one step of a loop computes: near the cache on a CPU, enough work at once elsewhere.
STEP_BYTES = {'cpu': 2**20}
STEP_BYTES_ELSEWHERE = 128 * 2**20


class Facts(NamedTuple):
    """What masks and dropout need to know about each position."""

    positions_BHL: Array | None  # None: position = place in the row
    chunks_BHLT: Array | None  # the chunk in each round, to find pairs of earlier rounds
    buckets_BHLT: Array | None  # likewise the bucket
    seeds_BH: Array | None  # where the hash of dropout bits starts


class Positions(NamedTuple):
    """What is gathered, by position: queries and values [B, H, L, K], and 1 / |q| [B, H, L], which makes them keys."""

    q: Array
    v: Array
    scale: Array


class Rows(NamedTuple):
    """Vectors of a window: queries [B, H, T, g, S, K], keys and values [B, H, T, g, (before + 1) S, K]."""

    q: Array
    k: Array
    v: Array


class Sums(NamedTuple):
    """A softmax before its division: sum of exp(logit - maximum) v, the maximum, sum of exp(logit - maximum)."""

    out: Array  # [..., K], float32
    maximum: Array  # MASKED where there is no key
    total: Array


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """LSH attention with segments, positions and dropout; no bias, no grouped heads, no cross attention."""
    layout = make_layout(request)
    rounds, buckets_BHTL = make_rounds(request, layout)
    facts = make_facts(request, layout, rounds, buckets_BHTL)
    q_BHLK, v_BHLK = request.query.swapaxes(1, 2), request.value.swapaxes(1, 2)
    out_BHLK, lse_BHL = attend_rounds(layout, q_BHLK, v_BHLK, rounds, facts)
    return out_BHLK.swapaxes(1, 2), lse_BHL


def make_facts(request: Request, layout: Layout, rounds: Rounds, buckets_BHTL: Array) -> Facts:
    """What the masks of this mechanism need to know about positions."""
    mechanism, shape_BHL = layout.mechanism, rounds.slots_BHTL[:, :, 0].shape
    positions = chunks = buckets = seeds = None
    if mechanism.causal and not request.has_default_positions:
        positions = jnp.broadcast_to(jnp.asarray(request.query_positions)[:, None], shape_BHL)
    if mechanism.deduplicate and mechanism.rounds > 1:
        chunks = jnp.moveaxis(rounds.slots_BHTL // jnp.int32(layout.size), 2, 3)
        buckets = jnp.moveaxis(buckets_BHTL, 2, 3) if mechanism.within_buckets else None
    if layout.dropout_rate:
        assert request.dropout_rng is not None
        heads = jnp.arange(shape_BHL[1])
        seeds = fold_index(row_seeds(request.dropout_rng, shape_BHL[0])[:, None], heads[None])
    return Facts(positions, chunks, buckets, seeds)


# Some chunks: the tokens in them, their scores


class Tokens(NamedTuple):
    """What masks and dropout know about the tokens in some slots [B, H, T, g, S]; None where it makes no difference."""

    places: Array  # in the row
    positions: Array | None
    runs: Array | None
    chunks: Array | None  # [..., T]: in all rounds
    buckets: Array | None


def own_and_before(x: Array, layout: Layout) -> Array:
    """Chunks [B, H, T, before + g, S, ...] to what the last g of them read: [B, H, T, g, (before + 1) S, ...]."""
    return jnp.concatenate([x[:, :, :, :-1], x[:, :, :, 1:]], axis=4) if layout.before else x


def extend(x_BHTN: Array, layout: Layout) -> Array:
    """[B, H, T, N] to [B, H, T, before + n, S]: chunks, with the last one also in front of the first."""
    chunks = x_BHTN.reshape(*x_BHTN.shape[:3], layout.chunks, layout.size)
    return jnp.concatenate([chunks[:, :, :, -1:], chunks], axis=3) if layout.before else chunks


class Window(NamedTuple):
    """The slots that one step computes: g chunks and the one before them, and their tokens."""

    start: tuple[Array, Array]  # round and chunk
    order: Array  # [B, H, T, before + g, S]
    queries: Tokens
    keys: Tokens
    numbers_T: Array
    seeds_BH: Array | None


def make_window(
    start: tuple[Array, Array], count: tuple[int, int], layout: Layout, slots: Rounds, facts: Facts
) -> Window:
    """The window of `count` rounds and chunks from `start` on; `slots` is extended."""

    def cut(x: Array) -> Array:
        return slice_from(x, start, (count[0], count[1] + layout.before))

    order = cut(slots.order_BHTN)
    tokens = Tokens(
        order,
        None if facts.positions_BHL is None else at_slots(facts.positions_BHL, order),
        None if slots.runs_BHTN is None else cut(slots.runs_BHTN),
        None if facts.chunks_BHLT is None else at_slots(facts.chunks_BHLT, order),
        None if facts.buckets_BHLT is None else at_slots(facts.buckets_BHLT, order),
    )
    queries = jax.tree.map(lambda x: x[:, :, :, layout.before :], tokens)
    keys = jax.tree.map(lambda x: own_and_before(x, layout), tokens)
    numbers_T = jax.lax.dynamic_slice_in_dim(slots.numbers_T, start[0], count[0])
    return Window(start, order, queries, keys, numbers_T, facts.seeds_BH)


def slice_from(x: Array, start: tuple[Array, Array], count: tuple[int, int]) -> Array:
    """`count` rounds and chunks of `x` [B, H, T, n, ...] from `start` on."""
    return jax.lax.dynamic_slice(
        x, (0, 0, *start, *(0,) * (x.ndim - 4)), (*x.shape[:2], *count, *x.shape[4:]), allow_negative_indices=False
    )


def at_slots(x: Array, order: Array) -> Array:
    """`x` [B, H, L, ...] at `order` [B, H, T, g, S]: [B, H, T, g, S, ...]."""
    taken = take(x, order.reshape(*order.shape[:2], -1))
    return taken.reshape(*order.shape, *x.shape[3:])


def own_rows(x: Array, window: Window, layout: Layout) -> Array:
    """`x` [B, H, L, ...] of a window's queries."""
    return at_slots(x, window.order[:, :, :, layout.before :])


def pairs(compare: Any, query: Array, key: Array) -> Array:
    """A comparison of all queries with all keys of the same chunk: [B, H, T, g, S, (before + 1) S]."""
    return compare(query[..., :, None], key[..., None, :])


def forbidden(window: Window, layout: Layout) -> Array | None:
    """Pairs of unlike segment (or bucket), later keys where causal, pairs of earlier rounds if asked; None if none."""
    queries, keys, masks = window.queries, window.keys, []
    if queries.runs is not None and keys.runs is not None:
        key_runs = jnp.where(keys.runs == NO_RUN, NO_KEY_RUN, keys.runs)
        masks.append(pairs(jnp.not_equal, queries.runs, key_runs))
    if layout.mechanism.causal:
        query_positions, key_positions = (x.places if x.positions is None else x.positions for x in (queries, keys))
        masks.append(pairs(jnp.less, query_positions, key_positions))
    for number in range(layout.mechanism.rounds - 1 if queries.chunks is not None else 0):
        masks.append(was_found(number, window, layout))
    return functools.reduce(jnp.logical_or, masks) if masks else None


def was_found(number: int, window: Window, layout: Layout) -> Array:
    """Pairs that round `number` holds and that are of a later round."""
    assert window.queries.chunks is not None and window.keys.chunks is not None
    own, other = window.queries.chunks[..., number], window.keys.chunks[..., number]
    is_earlier = (number < window.numbers_T)[:, None, None]
    own, previous = (jnp.where(is_earlier, chunk, -1) for chunk in (own, (own - layout.before) % layout.chunks))
    found = pairs(jnp.equal, own, other) | pairs(jnp.equal, previous, other)
    if window.queries.buckets is None or window.keys.buckets is None:
        return found
    return found & pairs(jnp.equal, window.queries.buckets[..., number], window.keys.buckets[..., number])


def make_positions(q_BHLK: Array, v_BHLK: Array) -> Positions:
    """What the loops gather."""
    return Positions(q_BHLK, v_BHLK, key_scale(q_BHLK))


def window_rows(x: Positions, window: Window, layout: Layout) -> Rows:
    """The vectors of a window's queries and of the keys that they read."""
    # Without the barrier XLA gathers the scale again for each element of each product's operand.
    q, v, scale = jax.lax.optimization_barrier(tuple(at_slots(own, window.order) for own in x))
    keys = (q.astype(jnp.float32) * scale[..., None]).astype(q.dtype)
    return Rows(q[:, :, :, layout.before :], own_and_before(keys, layout), own_and_before(v, layout))


def product(equation: str, left: Array, right: Array) -> Array:
    """An einsum over the last axes with float32 sums."""
    dtype = right.dtype
    return jnp.einsum(equation, left.astype(dtype), right, preferred_element_type=jnp.float32)


def scores(rows: Rows, window: Window, layout: Layout) -> tuple[Array, Array]:
    """float32 logits, MASKED where forbidden, and which of them are of a position with itself."""
    logits = product('...qK,...mK->...qm', rows.q, rows.k)
    is_self = pairs(jnp.equal, window.queries.places, window.keys.places)
    logits = jnp.where(is_self, SELF_LOGIT, logits)
    mask = forbidden(window, layout)
    return (logits if mask is None else jnp.where(mask, MASKED, logits)), is_self


def dropout_factor(window: Window, layout: Layout) -> Array | None:
    """0 or 1 / (1 - rate) for each pair, the same in all rounds; the bits of `dropout.keep_mask`. None without."""
    if window.seeds_BH is None:
        return None
    bits = fold_index(window.seeds_BH[:, :, None, None, None], window.queries.places)
    keep = is_kept(fold_index(bits[..., None], window.keys.places[..., None, :]), layout.dropout_rate)
    return keep.astype(jnp.float32) * (1.0 / (1.0 - layout.dropout_rate))


# Loops over chunks


def chunks_per_step(layout: Layout, rows: int, rounds: int) -> tuple[int, int]:
    """How many rounds and neighbouring chunks one step of a loop computes, for `rows` batch rows x heads.

    Chunks of one round first: neighbours share the chunk before.
    """
    step_bytes = STEP_BYTES.get(jax.default_backend(), STEP_BYTES_ELSEWHERE)
    at_most = max(1, step_bytes // (4 * rows * layout.size**2 * (1 + layout.before)))
    chunks = largest_divisor(layout.chunks, at_most)
    return largest_divisor(rounds, at_most // chunks) if chunks == layout.chunks else 1, chunks


def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of `number` that is at most `at_most`, which is positive."""
    return max(divisor for divisor in range(1, min(at_most, number) + 1) if number % divisor == 0)


def visit(step: Any, layout: Layout, rounds: Rounds, facts: Facts, start: Any) -> Any:
    """`step(window, carry)` over all chunks of the given rounds."""
    batch, heads, total = rounds.order_BHTN.shape[:3]
    count = chunks_per_step(layout, batch * heads, total)
    runs = None if rounds.runs_BHTN is None else extend(rounds.runs_BHTN, layout)
    slots = rounds._replace(order_BHTN=extend(rounds.order_BHTN, layout), runs_BHTN=runs)
    steps = layout.chunks // count[1]  # of one round

    def body(number: Array, carry: Any) -> Any:
        place = number // steps * count[0], number % steps * count[1]
        return step(make_window(place, count, layout, slots, facts), carry)

    return jax.lax.fori_loop(0, total // count[0] * steps, body, start)


def put(buffer: Array, x: Array, start: tuple[Array, Array]) -> Array:
    """`buffer` [B, H, T, n, ...] with rounds and chunks from `start` on replaced by `x`."""
    return jax.lax.dynamic_update_slice(buffer, x, (0, 0, *start, *(0,) * (x.ndim - 4)), allow_negative_indices=False)


def round_sums(layout: Layout, x: Positions, rounds: Rounds, facts: Facts) -> Sums:
    """The sums over the given rounds, by position: [B, H, L, ...]."""

    def step(window: Window, buffers: Sums) -> Sums:
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
    start = Sums(jnp.zeros((*shape, x.v.shape[-1])), jnp.zeros(shape), jnp.zeros(shape))
    by_slot = visit(step, layout, rounds, facts, start)
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


def over_rounds(fn: Any, combine: Any, start: Any, layout: Layout, rounds: Rounds) -> Any:
    """`combine` of `fn(rounds)` over rounds: all at once, or with `sequential` one after another from `start` on."""
    if not layout.mechanism.sequential:
        return fn(rounds)

    def step(carry: Any, own: Rounds) -> tuple[Any, None]:
        own = jax.tree.map(lambda x: x[None] if x.ndim == 0 else x[:, :, None], own)
        return combine(carry, fn(own)), None

    by_round = jax.tree.map(lambda x: x if x.ndim == 1 else jnp.moveaxis(x, 2, 0), rounds)
    return jax.lax.scan(step, start, by_round)[0]


def all_sums(layout: Layout, x: Positions, rounds: Rounds, facts: Facts) -> Sums:
    """The sums over all rounds, by position."""
    shape = x.q.shape[:3]
    start = Sums(jnp.zeros(x.v.shape), jnp.full(shape, MASKED), jnp.zeros(shape))
    return over_rounds(
        lambda own: round_sums(layout, x, own, facts),
        lambda *pair: merge_sums(list(pair)),
        start,
        layout,
        rounds,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_rounds(layout: Layout, q_BHLK: Array, v_BHLK: Array, rounds: Rounds, facts: Facts) -> tuple[Array, Array]:
    """Output [B, H, L, K] in the query's dtype and log-sum-exp [B, H, L] over all rounds."""
    return forward(layout, q_BHLK, v_BHLK, rounds, facts)[0]


def forward(layout: Layout, q_BHLK: Array, v_BHLK: Array, rounds: Rounds, facts: Facts) -> tuple[Any, Any]:
    """`attend_rounds`, and what its backward pass needs."""
    sums = all_sums(layout, make_positions(q_BHLK, v_BHLK), rounds, facts)
    has_key = sums.total > 0.0
    total = jnp.where(has_key, sums.total, 1.0)
    out = (sums.out / total[..., None]).astype(q_BHLK.dtype)
    lse = jnp.where(has_key, sums.maximum + jnp.log(total), MASKED)
    # Not the log-sum-exp: rounded near -1e5, of a token that reads itself alone, it would be off by 0.4 %.
    statistics = jnp.where(has_key, sums.maximum, 0.0), 1.0 / total
    return (out, lse), (q_BHLK, v_BHLK, rounds, facts, out, statistics)


def backward(layout: Layout, kept: Any, cotangents: tuple[Array, Array]) -> tuple[Array, Array, None, None]:
    """Gradients of q and v."""
    q_BHLK, v_BHLK, rounds, facts, out, (maximum, per_total) = kept
    dout, dlse = cotangents
    delta = (dout.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1) - dlse
    saved = dout, jnp.stack([maximum, per_total, delta], axis=-1)
    x = make_positions(q_BHLK, v_BHLK)
    start = Rows(*(jnp.zeros(own.shape) for own in (q_BHLK, q_BHLK, v_BHLK)))
    total = over_rounds(
        lambda own: round_gradients(layout, x, own, facts, saved),
        lambda *pair: jax.tree.map(jnp.add, *pair),
        start,
        layout,
        rounds,
    )
    _, from_keys = jax.vjp(unit_keys, q_BHLK.astype(jnp.float32))
    dq = total.q + from_keys(total.k)[0]
    return dq.astype(q_BHLK.dtype), total.v.astype(v_BHLK.dtype), None, None


attend_rounds.defvjp(forward, backward)


def round_gradients(layout: Layout, x: Positions, rounds: Rounds, facts: Facts, saved: tuple[Array, Array]) -> Rows:
    """float32 gradients of queries, keys and values by position [B, H, L, K], summed over the given rounds."""
    dout_BHLK, by_query = saved

    def step(window: Window, buffers: Rows) -> Rows:
        rows = window_rows(x, window, layout)
        dout = own_rows(dout_BHLK, window, layout)
        maximum, per_total, delta = jnp.split(own_rows(by_query, window, layout), 3, axis=-1)
        logits, is_self = scores(rows, window, layout)
        weights = jnp.exp(logits - maximum) * per_total
        dweights = product('...qK,...mK->...qm', dout, rows.v)
        factor = dropout_factor(window, layout)
        dropped = weights if factor is None else weights * factor
        dweights = dweights if factor is None else dweights * factor
        dlogits = jnp.where(is_self, 0.0, weights * (dweights - delta))
        dk, dv = (apart(product('...qm,...qK->...mK', *pair), layout) for pair in ((dlogits, rows.q), (dropped, dout)))
        return Rows(
            put(buffers.q, product('...qm,...mK->...qK', dlogits, rows.k), window.start),
            add(buffers.k, dk, window.start),
            add(buffers.v, dv, window.start),
        )

    def buffer(like: Array, before: int) -> Array:
        return jnp.zeros((*rounds.order_BHTN.shape[:3], before + layout.chunks, layout.size, like.shape[-1]))

    before = layout.before
    totals = visit(step, layout, rounds, facts, Rows(buffer(x.q, 0), buffer(x.q, before), buffer(x.v, before)))
    dq, dk, dv = (
        sum_by_position(total, layout, rounds, skip) for total, skip in zip(totals, (0, before, before), strict=True)
    )
    return Rows(dq, dk, dv)


def apart(x: Array, layout: Layout) -> Array:
    """What g chunks read [B, H, T, g, (before + 1) S, K], as chunks [B, H, T, before + g, S, K]; the transpose of
    `own_and_before`."""
    if not layout.before:
        return x
    previous, own = jnp.split(x, 2, axis=4)
    padding = [(0, 0)] * x.ndim
    padding[3] = (0, 1)
    return jnp.pad(previous, padding) + jnp.pad(own, [*padding[:3], (1, 0), *padding[4:]])


def sum_by_position(x: Array, layout: Layout, rounds: Rounds, before: int) -> Array:
    """Chunks [B, H, T, before + n, S, K], summed over the rounds in the order of positions."""
    if before:  # what stands before the first chunk belongs to the last one
        x = add(x, x[:, :, :, :1], (jnp.int32(0), jnp.int32(layout.chunks)))
    return add_up([by_position(x[:, :, n], rounds, n, before * layout.size) for n in axis_numbers(rounds)])


def add(buffer: Array, x: Array, start: tuple[Array, Array]) -> Array:
    """`buffer` [B, H, T, n, ...] with `x` added to the rounds and chunks of a window."""
    return put(buffer, slice_from(buffer, start, (x.shape[2], x.shape[3])) + x, start)
