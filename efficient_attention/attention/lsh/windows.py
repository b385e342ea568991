"""What a step of LSH attention reads and scores: some neighbouring chunks of the sorted order, and the one before them.

Axes: B rows, H heads, T rounds, n chunks of S slots, g chunks of a step, K head width; N = n S slots.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dropout import fold_index, is_kept, row_seeds
from efficient_attention.attention.lsh.definition import SELF_LOGIT, key_scale
from efficient_attention.attention.lsh.rounds import NO_RUN, Layout, Rounds
from efficient_attention.attention.lsh.sorting import take
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import MASKED

NO_KEY_RUN = -2  # unlike NO_RUN, so that queries and keys that are no tokens do not match


class MaskInputs(NamedTuple):
    """What masks and dropout need to know about each position."""

    positions_BHL: Array | None  # None: position = place in the row
    chunks_BHLT: Array | None  # the chunk in each round, to find pairs of earlier rounds
    buckets_BHLT: Array | None  # likewise the bucket
    seeds_BH: Array | None  # where the hash of dropout bits starts


class Gathered(NamedTuple):
    """What is gathered, by position: queries and values [B, H, L, K], and 1 / |q| [B, H, L], which makes them keys."""

    q: Array
    v: Array
    scale: Array


class Vectors(NamedTuple):
    """Vectors of a window: queries [B, H, T, g, S, K], keys and values [B, H, T, g, (before + 1) S, K]."""

    q: Array
    k: Array
    v: Array


def make_mask_inputs(request: Request, layout: Layout, rounds: Rounds, buckets_BHTL: Array) -> MaskInputs:
    """What the masks of this mechanism need to know about positions."""
    shape_BHL = rounds.slots_BHTL[:, :, 0].shape
    positions = chunks = buckets = seeds = None
    if layout.causal and not request.has_default_positions:
        positions = jnp.broadcast_to(jnp.asarray(request.positions.query)[:, None], shape_BHL)
    if layout.deduplicate and layout.rounds > 1:
        chunks = jnp.moveaxis(rounds.slots_BHTL // jnp.int32(layout.size), 2, 3)
        buckets = jnp.moveaxis(buckets_BHTL, 2, 3) if layout.within_buckets else None
    if request.dropout is not None:
        heads = jnp.arange(shape_BHL[1])
        seeds = fold_index(row_seeds(request.dropout.rng, shape_BHL[0])[:, None], heads[None])
    return MaskInputs(positions, chunks, buckets, seeds)


class Tokens(NamedTuple):
    """What masks and dropout know about the tokens in some slots [B, H, T, g, S]; None where it makes no difference."""

    places: Array  # in the row
    positions: Array | None
    runs: Array | None
    chunks: Array | None  # [..., T]: in all rounds
    buckets: Array | None


def with_previous(x: Array, layout: Layout) -> Array:
    """Chunks [B, H, T, before + g, S, ...] to what the last g of them read: [B, H, T, g, (before + 1) S, ...]."""
    return jnp.concatenate([x[:, :, :, :-1], x[:, :, :, 1:]], axis=4) if layout.before else x


def extend(x_BHTN: Array, layout: Layout) -> Array:
    """[B, H, T, N] to [B, H, T, before + n, S]: chunks, with the last one also in front of the first."""
    chunks = x_BHTN.reshape(*x_BHTN.shape[:3], layout.chunks, layout.size)
    return jnp.concatenate([chunks[:, :, :, -1:], chunks], axis=3) if layout.before else chunks


class ChunkWindow(NamedTuple):
    """The slots that one step computes: g chunks and the one before them, and their tokens."""

    start: tuple[Array, Array]  # round and chunk
    order: Array  # [B, H, T, before + g, S]
    queries: Tokens
    keys: Tokens
    numbers_T: Array
    seeds_BH: Array | None


def make_window(
    start: tuple[Array, Array], count: tuple[int, int], layout: Layout, slots: Rounds, mask_inputs: MaskInputs
) -> ChunkWindow:
    """The window of `count` rounds and chunks from `start` on; `slots` is extended."""

    def cut(x: Array) -> Array:
        return slice_from(x, start, (count[0], count[1] + layout.before))

    order = cut(slots.order_BHTN)
    tokens = Tokens(
        order,
        None if mask_inputs.positions_BHL is None else at_slots(mask_inputs.positions_BHL, order),
        None if slots.runs_BHTN is None else cut(slots.runs_BHTN),
        None if mask_inputs.chunks_BHLT is None else at_slots(mask_inputs.chunks_BHLT, order),
        None if mask_inputs.buckets_BHLT is None else at_slots(mask_inputs.buckets_BHLT, order),
    )
    queries = jax.tree.map(lambda x: x[:, :, :, layout.before :], tokens)
    keys = jax.tree.map(lambda x: with_previous(x, layout), tokens)
    numbers_T = jax.lax.dynamic_slice_in_dim(slots.numbers_T, start[0], count[0])
    return ChunkWindow(start, order, queries, keys, numbers_T, mask_inputs.seeds_BH)


def corner(start: tuple[Array, Array], axes: int) -> tuple[Array, ...]:
    """Where round and chunk `start` of an array [B, H, T, n, ...] begin; 32 bits also where JAX counts in 64."""
    zero = jnp.int32(0)
    return (zero, zero, *(place.astype(jnp.int32) for place in start), *(zero,) * (axes - 4))


def slice_from(x: Array, start: tuple[Array, Array], count: tuple[int, int]) -> Array:
    """`count` rounds and chunks of `x` [B, H, T, n, ...] from `start` on."""
    return jax.lax.dynamic_slice(
        x, corner(start, x.ndim), (*x.shape[:2], *count, *x.shape[4:]), allow_negative_indices=False
    )


def at_slots(x: Array, order_BHTgS: Array) -> Array:
    """`x` [B, H, L, ...] at `order_BHTgS` [B, H, T, g, S]: [B, H, T, g, S, ...]."""
    taken = take(x, order_BHTgS.reshape(*order_BHTgS.shape[:2], -1))
    return taken.reshape(*order_BHTgS.shape, *x.shape[3:])


def rows_of_queries(x: Array, window: ChunkWindow, layout: Layout) -> Array:
    """`x` [B, H, L, ...] of a window's queries."""
    return at_slots(x, window.order[:, :, :, layout.before :])


def pairs(compare: Any, query: Array, key: Array) -> Array:
    """A comparison of all queries with all keys of the same chunk: [B, H, T, g, S, (before + 1) S]."""
    return compare(query[..., :, None], key[..., None, :])


def forbidden(window: ChunkWindow, layout: Layout) -> Array | None:
    """Pairs of unlike segment (or bucket), later keys where causal, pairs of earlier rounds if asked; None if none."""
    queries, keys, masks = window.queries, window.keys, []
    if queries.runs is not None and keys.runs is not None:
        key_runs = jnp.where(keys.runs == NO_RUN, NO_KEY_RUN, keys.runs)
        masks.append(pairs(jnp.not_equal, queries.runs, key_runs))
    if layout.causal:
        query_positions, key_positions = (x.places if x.positions is None else x.positions for x in (queries, keys))
        masks.append(pairs(jnp.less, query_positions, key_positions))
    for number in range(layout.rounds - 1 if queries.chunks is not None else 0):
        masks.append(was_found(number, window, layout))
    return functools.reduce(jnp.logical_or, masks) if masks else None


def was_found(number: int, window: ChunkWindow, layout: Layout) -> Array:
    """Pairs that round `number` holds and that are of a later round."""
    assert window.queries.chunks is not None and window.keys.chunks is not None
    query_chunks, key_chunks = window.queries.chunks[..., number], window.keys.chunks[..., number]
    is_earlier = (number < window.numbers_T)[:, None, None]
    query_chunks, previous = (
        jnp.where(is_earlier, chunk, -1) for chunk in (query_chunks, (query_chunks - layout.before) % layout.chunks)
    )
    found = pairs(jnp.equal, query_chunks, key_chunks) | pairs(jnp.equal, previous, key_chunks)
    if window.queries.buckets is None or window.keys.buckets is None:
        return found
    return found & pairs(jnp.equal, window.queries.buckets[..., number], window.keys.buckets[..., number])


def make_gathered(q_BHLK: Array, v_BHLK: Array) -> Gathered:
    """What the loops gather."""
    return Gathered(q_BHLK, v_BHLK, key_scale(q_BHLK))


def window_rows(x: Gathered, window: ChunkWindow, layout: Layout) -> Vectors:
    """The vectors of a window's queries and of the keys that they read."""
    # Without the barrier XLA gathers the scale again for each element of each product's operand.
    q, v, scale = jax.lax.optimization_barrier(tuple(at_slots(vectors, window.order) for vectors in x))
    keys = (q.astype(jnp.float32) * scale[..., None]).astype(q.dtype)
    return Vectors(q[:, :, :, layout.before :], with_previous(keys, layout), with_previous(v, layout))


def product(equation: str, left: Array, right: Array) -> Array:
    """An einsum over the last axes with float32 sums."""
    dtype = right.dtype
    return jnp.einsum(equation, left.astype(dtype), right, preferred_element_type=jnp.float32)


def scores(rows: Vectors, window: ChunkWindow, layout: Layout) -> tuple[Array, Array]:
    """float32 logits, MASKED where forbidden, and which of them are of a position with itself."""
    logits = product('...qK,...mK->...qm', rows.q, rows.k)
    is_self = pairs(jnp.equal, window.queries.places, window.keys.places)
    logits = jnp.where(is_self, SELF_LOGIT, logits)
    mask = forbidden(window, layout)
    return (logits if mask is None else jnp.where(mask, MASKED, logits)), is_self


def dropout_factor(window: ChunkWindow, layout: Layout) -> Array | None:
    """0 or 1 / (1 - rate) for each pair, the same in all rounds; the bits of `dropout.keep_mask`. None without."""
    if window.seeds_BH is None:
        return None
    bits = fold_index(window.seeds_BH[:, :, None, None, None], window.queries.places)
    keep = is_kept(fold_index(bits[..., None], window.keys.places[..., None, :]), layout.dropout_rate)
    return keep.astype(jnp.float32) * (1.0 / (1.0 - layout.dropout_rate))
