"""LSH attention in time and memory linear in the length; `lsh_definition` says what it computes.

The loops visit a few neighbouring chunks of the sorted order at a time: they gather the vectors of those and of the
chunk before, take a softmax over both, and keep each round's sums apart from its maximum until the rounds are merged.
The backward loop recomputes the weights from the merged maximum and total, as FlashAttention does (Dao et al. 2022,
arXiv 2205.14135): nothing of size L x chunk is stored, and no round waits for another. Results go back into the order
of positions by gathering, never by scattering sums: the same inputs give the same bits.

Axes here: B rows, H heads, T rounds, n chunks of S slots, g chunks of a step, K head width; N = n S slots.
"""

import functools
import math
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
    make_layout,
    make_rounds,
    take,
    unit_keys,
)
from efficient_attention.attention.request import Request

NO_KEY_RUN = -2  # unlike NO_RUN, so that queries and keys that are no tokens do not match
# Bytes of float32 scores that one step of a loop computes: near the cache on a CPU, enough work at once elsewhere.
STEP_BYTES = {'cpu': 2 * 2**20}
STEP_BYTES_ELSEWHERE = 128 * 2**20


class Facts(NamedTuple):
    """What masks and dropout need to know about each position."""

    positions_BHL: Array | None  # None: position = place in the row
    chunks_BHLT: Array | None  # the chunk in each round, to find pairs of earlier rounds
    buckets_BHLT: Array | None  # likewise the bucket
    seeds_BH: Array | None  # where the hash of dropout bits starts


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

    start: Array
    order: Array  # [B, H, T, before + g, S]
    queries: Tokens
    keys: Tokens
    numbers_T: Array
    seeds_BH: Array | None


def make_window(start: Array, count: int, layout: Layout, slots: Rounds, facts: Facts) -> Window:
    """The window of chunks start, ..., start + count - 1; `slots` is extended."""

    def cut(x: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, start, count + layout.before, axis=3)

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
    return Window(start, order, queries, keys, slots.numbers_T, facts.seeds_BH)


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


class Rows(NamedTuple):
    """Vectors of a window: queries [B, H, T, g, S, K], keys and values [B, H, T, g, (before + 1) S, K]."""

    q: Array
    k: Array
    v: Array


def make_rows(q: Array, v: Array, layout: Layout) -> Rows:
    """The operands of the products, from q and v in the slots of a window."""
    keys = own_and_before(unit_keys(q).astype(q.dtype), layout)
    return Rows(q[:, :, :, layout.before :], keys, own_and_before(v, layout))


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


def chunks_per_step(layout: Layout, rows: int) -> int:
    """How many neighbouring chunks one step of a loop computes, for `rows` batch rows x heads x rounds."""
    step_bytes = STEP_BYTES.get(jax.default_backend(), STEP_BYTES_ELSEWHERE)
    at_most = max(1, step_bytes // (4 * rows * layout.size**2 * (1 + layout.before)))
    return max(number for number in range(1, min(at_most, layout.chunks) + 1) if layout.chunks % number == 0)


def visit(step: Any, layout: Layout, rounds: Rounds, facts: Facts, start: Any) -> Any:
    """`step(window, carry)` over all chunks of the given rounds."""
    count = chunks_per_step(layout, math.prod(rounds.order_BHTN.shape[:3]))
    runs = None if rounds.runs_BHTN is None else extend(rounds.runs_BHTN, layout)
    slots = rounds._replace(order_BHTN=extend(rounds.order_BHTN, layout), runs_BHTN=runs)

    def body(number: Array, carry: Any) -> Any:
        return step(make_window(number * count, count, layout, slots, facts), carry)

    return jax.lax.fori_loop(0, layout.chunks // count, body, start)


def put(buffer: Array, x: Array, start: Array) -> Array:
    """`buffer` [B, H, T, n, ...] with chunks from `start` on replaced by `x`."""
    return jax.lax.dynamic_update_slice_in_dim(buffer, x, start, axis=3)


def round_sums(layout: Layout, q_BHLK: Array, v_BHLK: Array, rounds: Rounds, facts: Facts) -> Sums:
    """The sums over the given rounds, by position: [B, H, L, ...]."""

    def step(window: Window, buffers: Sums) -> Sums:
        rows = make_rows(at_slots(q_BHLK, window.order), at_slots(v_BHLK, window.order), layout)
        logits, _ = scores(rows, window, layout)
        maximum = logits.max(axis=-1)
        # Where all keys are masked, maximum = MASKED: the second term keeps the exponential at 0.
        weights = jnp.exp(logits - jnp.maximum(maximum, MASKED / 2)[..., None])
        factor = dropout_factor(window, layout)
        dropped = weights if factor is None else weights * factor
        sums = Sums(product('...qm,...mK->...qK', dropped, rows.v), maximum, weights.sum(axis=-1))
        return jax.tree.map(lambda buffer, x: put(buffer, x, window.start), buffers, sums)

    shape = (*rounds.order_BHTN.shape[:3], layout.chunks, layout.size)
    start = Sums(jnp.zeros((*shape, v_BHLK.shape[-1])), jnp.zeros(shape), jnp.zeros(shape))
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


def all_sums(layout: Layout, q_BHLK: Array, v_BHLK: Array, rounds: Rounds, facts: Facts) -> Sums:
    """The sums over all rounds, by position."""
    shape = q_BHLK.shape[:3]
    start = Sums(jnp.zeros(v_BHLK.shape), jnp.full(shape, MASKED), jnp.zeros(shape))
    return over_rounds(
        lambda own: round_sums(layout, q_BHLK, v_BHLK, own, facts),
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
    sums = all_sums(layout, q_BHLK, v_BHLK, rounds, facts)
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
    by_query = jnp.stack([maximum, per_total, delta], axis=-1)

    def gradients(own: Rounds) -> tuple[Array, Array]:
        return round_gradients(layout, q_BHLK, v_BHLK, own, facts, (dout, by_query))

    start = jnp.zeros(q_BHLK.shape), jnp.zeros(v_BHLK.shape)
    dq, dv = over_rounds(gradients, lambda *pair: jax.tree.map(jnp.add, *pair), start, layout, rounds)
    return dq.astype(q_BHLK.dtype), dv.astype(v_BHLK.dtype), None, None


attend_rounds.defvjp(forward, backward)


def round_gradients(
    layout: Layout, q_BHLK: Array, v_BHLK: Array, rounds: Rounds, facts: Facts, saved: tuple[Array, Array]
) -> tuple[Array, Array]:
    """float32 gradients of q and v [B, H, L, K], summed over the given rounds."""
    dout_BHLK, by_query = saved

    def step(window: Window, buffers: tuple[Array, Array]) -> tuple[Array, Array]:
        vectors = [at_slots(x, window.order).astype(jnp.float32) for x in (q_BHLK, v_BHLK)]
        rows, into_vectors = jax.vjp(lambda q, v: make_rows(q, v, layout), *vectors)
        rows = Rows(*(x.astype(q_BHLK.dtype) for x in rows))
        dout = own_rows(dout_BHLK, window, layout)
        maximum, per_total, delta = jnp.split(own_rows(by_query, window, layout), 3, axis=-1)
        logits, is_self = scores(rows, window, layout)
        weights = jnp.exp(logits - maximum) * per_total
        dweights = product('...qK,...mK->...qm', dout, rows.v)
        factor = dropout_factor(window, layout)
        dropped = weights if factor is None else weights * factor
        dweights = dweights if factor is None else dweights * factor
        dlogits = jnp.where(is_self, 0.0, weights * (dweights - delta))
        drows = Rows(
            product('...qm,...mK->...qK', dlogits, rows.k),
            product('...qm,...qK->...mK', dlogits, rows.q),
            product('...qm,...qK->...mK', dropped, dout),
        )
        dq, dv = into_vectors(drows)
        return add(buffers[0], dq, window.start), add(buffers[1], dv, window.start)

    shape = (*rounds.order_BHTN.shape[:3], layout.before + layout.chunks, layout.size)
    buffers = jnp.zeros((*shape, q_BHLK.shape[-1])), jnp.zeros((*shape, v_BHLK.shape[-1]))
    dq, dv = visit(step, layout, rounds, facts, buffers)
    return sum_by_position(dq, layout, rounds), sum_by_position(dv, layout, rounds)


def sum_by_position(x: Array, layout: Layout, rounds: Rounds) -> Array:
    """Extended chunks [B, H, T, before + n, S, K], summed over the rounds in the order of positions."""
    folded, skip = fold(x, layout), layout.before * layout.size
    return add_up([by_position(folded[:, :, n], rounds, n, skip) for n in axis_numbers(rounds)])


def add(buffer: Array, x: Array, start: Array) -> Array:
    """`buffer` [B, H, T, before + n, ...] with `x` added to the chunks of a window."""
    return put(buffer, jax.lax.dynamic_slice_in_dim(buffer, start, x.shape[3], axis=3) + x, start)


def fold(x: Array, layout: Layout) -> Array:
    """`x` [B, H, T, before + n, S, K] with what stands before the first chunk added to the last one."""
    return add(x, x[:, :, :, :1], jnp.int32(layout.chunks)) if layout.before else x
