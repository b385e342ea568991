"""Loops over the tiles of a schedule: softmax attention forward and backward with recomputed weights.

The forward loop walks the query tiles in chunks: it gathers the key tiles of each row, takes one softmax over them and
keeps the output and the log-sum-exp. The backward loops recompute the weights from the log-sum-exp, once by query tile
for dq and once by key tile for dk and dv, so that they sum by gathering, never by scattering: a result does not depend
on an order of additions. The idea of both is FlashAttention's (Dao et al. 2022, arXiv 2205.14135; 2023, 2307.08691);
a whole row at a time instead of a running softmax measured faster under XLA on a CPU.

Axes here: B rows, G key heads, h query heads of a key head, n tiles, S positions of a tile, K head width; t tiles of a
chunk; q and m the query and key positions that are computed together. A leading b or g is 1 where nothing differs.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.dense import MASKED
from efficient_attention.attention.dropout import fold_index, is_kept, row_seeds
from efficient_attention.attention.request import Request
from efficient_attention.attention.schedule import Pass, RowClass
from efficient_attention.attention.tile_bias import ArrayBias, FunctionBias, TileBias, make_tile_bias
from efficient_attention.attention.tile_picks import (
    TILE,
    Chunk,
    Facts,
    Pick,
    into_tiles,
    make_chunk,
    make_side,
    reorder,
)

# Bytes of float32 scores that one step of a loop computes: near the cache on a CPU, enough work at once elsewhere.
CHUNK_BYTES = {'cpu': 4 * 2**20}
CHUNK_BYTES_ELSEWHERE = 128 * 2**20


class Operands(NamedTuple):
    """Arrays of a pass, in tiles; the last tile of each is empty."""

    q_BGhnSK: Array  # scaled by 1 / sqrt(K)
    k_BGnSK: Array
    v_BGnSK: Array
    bias: TileBias | None


@dataclasses.dataclass(frozen=True)
class Options:
    """What is static about a pass."""

    own: Pass
    dropout_rate: float
    chunk_bytes: int


def attend_pass(request: Request, heads: np.ndarray, own: Pass) -> tuple[Array, Array]:
    """Output [B, L, H, K] and log-sum-exp [B, H, L] of one pass; `heads`: the numbers of the request's heads."""
    batch, queries, _, width = request.query.shape
    has_dropout = request.dropout_rng is not None and request.dropout_rate > 0.0
    options = Options(
        own,
        request.dropout_rate if has_dropout else 0.0,
        CHUNK_BYTES.get(jax.default_backend(), CHUNK_BYTES_ELSEWHERE),
    )
    scaled = request.query * jnp.asarray(1.0 / math.sqrt(width), request.query.dtype)
    q_BLGhK = scaled.reshape(batch, queries, request.key.shape[2], -1, width)
    operands = Operands(
        into_tiles(q_BLGhK, own.query_listing).transpose(0, 3, 4, 1, 2, 5),
        into_tiles(request.key, own.key_listing).transpose(0, 3, 1, 2, 4),
        into_tiles(request.value, own.key_listing).transpose(0, 3, 1, 2, 4),
        make_tile_bias(request, heads, own.query_listing, own.key_listing),
    )
    facts = Facts(
        make_side(request.query_positions, request.query_segments, own.query_listing),
        make_side(request.key_positions, request.key_segments, own.key_listing),
        dropout_seeds(request, heads) if has_dropout else None,
    )
    run = visit_by_head if is_wide(options, operands) else visit
    out_BGhnSK, lse_BGhnS = run(options, operands, facts)
    out_BLHK = out_BGhnSK.reshape(batch, len(heads), -1, width).swapaxes(1, 2)[:, :queries]
    lse_BHL = lse_BGhnS.reshape(batch, len(heads), -1)[..., :queries]
    back = np.argsort(own.query_listing)
    return reorder(out_BLHK, back, 1), reorder(lse_BHL, back, 2)


def dropout_seeds(request: Request, heads: np.ndarray) -> Array:
    """uint32 [B, G, h]: where the hash of each head's dropout bits starts, as in `dropout.keep_mask`."""
    assert request.dropout_rng is not None
    batch = request.query.shape[0]
    seeds_BH = fold_index(row_seeds(request.dropout_rng, batch)[:, None], jnp.asarray(heads)[None])
    return seeds_BH.reshape(batch, request.key.shape[2], -1)


def is_wide(options: Options, operands: Operands) -> bool:
    """Whether one row of tiles over all heads is too much for a CPU's cache, so that heads should take turns.

    Elsewhere chunks are large, and heads may be spread over devices, which a loop over heads would undo.
    """
    batch, groups, per_group, _, size, _ = operands.q_BGhnSK.shape
    width = max(own.lists.shape[-1] for own in options.own.by_query)
    row_bytes = 4 * batch * groups * per_group * size * size * width
    is_splittable = groups > 1 and not isinstance(operands.bias, FunctionBias) and len(options.own.patterns) == 1
    return jax.default_backend() == 'cpu' and is_splittable and row_bytes > options.chunk_bytes


def visit_by_head(options: Options, operands: Operands, facts: Facts) -> tuple[Array, Array]:
    """`visit`, one key head after another."""
    arrays = {'q': operands.q_BGhnSK, 'k': operands.k_BGnSK, 'v': operands.v_BGnSK}
    if isinstance(operands.bias, ArrayBias) and operands.bias.array.shape[1] > 1:
        arrays['bias'] = operands.bias.array
    if facts.dropout_seeds_BGh is not None:
        arrays['seeds'] = facts.dropout_seeds_BGh

    def one(head: dict[str, Array]) -> tuple[Array, Array]:
        bias = ArrayBias(head['bias'][:, None]) if 'bias' in head else operands.bias
        q, k, v = (head[name][:, None] for name in ('q', 'k', 'v'))
        seeds = head['seeds'][:, None] if 'seeds' in head else None
        return visit(options, Operands(q, k, v, bias), facts._replace(dropout_seeds_BGh=seeds))

    out, lse = jax.lax.map(one, {name: jnp.moveaxis(x, 1, 0) for name, x in arrays.items()})
    return jnp.moveaxis(out[:, :, 0], 0, 1), jnp.moveaxis(lse[:, :, 0], 0, 1)


def scores(chunk: Chunk, operands: Operands, bias: Array | None) -> Array:
    """float32 logits [B, G, h, t, q, m]."""
    q, k = chunk.query(operands.q_BGhnSK, 2), chunk.key(operands.k_BGnSK, 2)
    logits = jnp.einsum('BGhtqK,BGtmK->BGhtqm', q, k, preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias


def allowed(chunk: Chunk, options: Options, facts: Facts) -> Array | None:
    """Booleans [b, g, 1, t, q, m], or None where every pair is allowed."""
    masks = []
    q_segments, k_segments = facts.queries.segments_B1nS, facts.keys.segments_B1nS
    if chunk.needs_mask:
        query, key = chunk.query(facts.queries.positions_b1nS, 1), chunk.key(facts.keys.positions_b1nS, 1)
        patterns = options.own.patterns
        masks = [(chunk.key(facts.keys.numbers_11nS, 1) >= 0)[..., None, :]]
        by_head = [
            pattern(
                query[:, min(head, query.shape[1] - 1), :, :, None], key[:, min(head, key.shape[1] - 1), :, None, :]
            )
            for head, pattern in enumerate(patterns)
        ]
        masks.append(jnp.stack(by_head, axis=1))
    if q_segments is not None and k_segments is not None:
        query, key = chunk.query(q_segments, 1)[..., None], chunk.key(k_segments, 1)[..., None, :]
        masks.append((query == key) & (key != 0))
    return functools.reduce(jnp.logical_and, masks)[:, :, None] if masks else None


def dropout_factor(chunk: Chunk, options: Options, facts: Facts) -> Array | None:
    """0 or 1 / (1 - rate) for each weight [B, G, h, t, q, m], from the numbers of its query and key; None without."""
    if facts.dropout_seeds_BGh is None:
        return None
    query, key = chunk.query(facts.queries.numbers_11nS, 1), chunk.key(facts.keys.numbers_11nS, 1)
    bits = fold_index(facts.dropout_seeds_BGh[..., None, None], query[:, :, None])
    keep = is_kept(fold_index(bits[..., None], key[:, :, None, :, None, :]), options.dropout_rate)
    return keep.astype(jnp.float32) * (1.0 / (1.0 - options.dropout_rate))


def forward_chunk(chunk: Chunk, options: Options, operands: Operands, facts: Facts) -> tuple[Array, Array]:
    """Output [B, G, h, t, q, K] in the values' dtype and log-sum-exp [B, G, h, t, q] of a chunk of query tiles."""
    bias = None if operands.bias is None else operands.bias.tiles(chunk, facts)
    logits, mask = scores(chunk, operands, bias), allowed(chunk, options, facts)
    if mask is not None:
        logits = jnp.where(mask, logits, MASKED)
    maximum = logits.max(axis=-1, keepdims=True)
    weights = jnp.exp(logits - maximum)
    if mask is not None:
        weights = jnp.where(mask, weights, 0.0)
    total = weights.sum(axis=-1)
    has_key = total > 0.0
    safe_total = jnp.where(has_key, total, 1.0)
    factor = dropout_factor(chunk, options, facts)
    weights = weights if factor is None else weights * factor
    v = chunk.key(operands.v_BGnSK, 2)
    out = jnp.einsum('BGhtqm,BGtmK->BGhtqK', weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    lse = jnp.where(has_key, maximum[..., 0] + jnp.log(safe_total), MASKED)
    return (out / safe_total[..., None]).astype(v.dtype), lse


class Saved(NamedTuple):
    """What the backward loops read besides the operands: log-sum-exp, dout and rowsum(dout out) - dlse."""

    lse_BGhnS: Array
    dout_BGhnSK: Array
    delta_BGhnS: Array


def backward_scores(
    chunk: Chunk, options: Options, operands: Operands, facts: Facts, saved: Saved, bias: Array | None
) -> tuple[Array, Array]:
    """(weights after dropout, gradient of the logits), both float32 [B, G, h, t, q, m]."""
    weights = jnp.exp(scores(chunk, operands, bias) - chunk.query(saved.lse_BGhnS, 1)[..., None])
    mask = allowed(chunk, options, facts)
    if mask is not None:
        weights = jnp.where(mask, weights, 0.0)
    dout, v = chunk.query(saved.dout_BGhnSK, 2), chunk.key(operands.v_BGnSK, 2)
    dweights = jnp.einsum('BGhtqK,BGtmK->BGhtqm', dout, v, preferred_element_type=jnp.float32)
    factor = dropout_factor(chunk, options, facts)
    dropped = weights if factor is None else weights * factor
    dweights = dweights if factor is None else dweights * factor
    return dropped, weights * (dweights - chunk.query(saved.delta_BGhnS, 1)[..., None])


# ---- loops ----


class Loop(NamedTuple):
    """What a loop over chunks of rows needs to know besides the rows."""

    classes: tuple[RowClass, ...]
    tiles: int  # rows in all, also those without a list
    pair_bytes: int  # of the scores of one pair of tiles
    chunk_bytes: int

    def rows_of_chunk(self, own: RowClass) -> int:
        """How many rows one step computes."""
        at_most = max(1, self.chunk_bytes // (self.pair_bytes * own.lists.shape[-1]))
        chunks = -(-len(own.rows) // at_most)
        return -(-len(own.rows) // chunks)


def run_loop(
    loop: Loop, step: Callable[[Pick, RowClass, Any], tuple[Any, list[Array]]], carry: Any, fills: tuple[float, ...]
) -> tuple[Any, list[Array]]:
    """`step` over all chunks of all classes: the last carry, and its arrays [t, ...] as [tiles, ...].

    fills: for each array the value in rows that no class holds.
    """
    results, numbers = [], []
    for own in loop.classes:
        carry, arrays = run_class(own, loop.rows_of_chunk(own), step, carry)
        results.append(arrays)
        numbers.append(own.rows)
    parts = zip(*results, strict=True)
    return carry, [
        into_order(list(x), np.concatenate(numbers), loop.tiles, fill) for x, fill in zip(parts, fills, strict=True)
    ]


def run_class(own: RowClass, rows: int, step: Callable, carry: Any) -> tuple[Any, list[Array]]:
    """`step` over chunks of `rows` rows of one class."""
    chunks = -(-len(own.rows) // rows)
    numbers = np.resize(
        np.arange(len(own.rows)), chunks * rows
    )  # the last chunk repeats rows; their results are dropped
    is_repeat = np.arange(chunks * rows) >= len(own.rows)
    lists = None
    if not own.is_shared:
        lists = jnp.asarray(own.lists[:, numbers].reshape(len(own.lists), chunks, rows, -1).swapaxes(0, 1))

    def body(carry: Any, part: tuple[Array, Array, Array | None]) -> tuple[Any, list[Array]]:
        tile_numbers, is_repeat, lists = part
        return step(Pick(tile_numbers, own.lists[0, 0] if lists is None else lists, is_repeat), own, carry)

    parts = jnp.asarray(own.rows[numbers].reshape(chunks, rows)), jnp.asarray(is_repeat.reshape(chunks, rows)), lists
    if chunks == 1:
        carry, arrays = body(carry, jax.tree.map(lambda x: x[0], parts))
    else:
        carry, arrays = jax.lax.scan(body, carry, parts)
        arrays = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    return carry, [x[: len(own.rows)] for x in arrays]


def into_order(parts: list[Array], numbers: np.ndarray, tiles: int, fill: float) -> Array:
    """Rows [t, ...] of all parts, whose tile numbers are given, as [tiles, ...], missing ones filled."""
    x = jnp.concatenate(parts) if len(parts) > 1 else parts[0]
    if np.array_equal(numbers, np.arange(tiles)):
        return x
    if len(numbers) < tiles:
        x = jnp.concatenate([x, jnp.full((1, *x.shape[1:]), fill, x.dtype)])
    places = np.full(tiles, len(numbers))
    places[numbers] = np.arange(len(numbers))
    return x[places]


def lead(x: Array, pick: Pick, trailing: int) -> Array:
    """[B, G, (h,) t, S, ...] or, with shared lists, [B, G, (h,) 1, t S, ...] to [t, B, G, (h,) S, ...]."""
    axis = x.ndim - trailing - 1
    x = x.reshape(*x.shape[:axis], pick.rows.shape[0], -1, *x.shape[axis + 2 :])
    return jnp.moveaxis(x, axis, 0)


def unlead(x: Array, trailing: int) -> Array:
    """[n, B, ..., S(, K)] to [B, ..., n, S(, K)]."""
    return jnp.moveaxis(x, 0, x.ndim - trailing - 1)


def make_loop(options: Options, operands: Operands, by_key: bool) -> Loop:
    """The loop over query tiles or over key tiles."""
    batch, groups, per_group, query_tiles, size, _ = operands.q_BGhnSK.shape
    return Loop(
        options.own.by_key if by_key else options.own.by_query,
        (operands.k_BGnSK.shape[2] if by_key else query_tiles) - 1,
        4 * batch * groups * per_group * size * size,
        options.chunk_bytes,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def visit(options: Options, operands: Operands, facts: Facts) -> tuple[Array, Array]:
    """Output [B, G, h, n, S, K] and log-sum-exp [B, G, h, n, S] over the tiles of a pass, without the empty tile."""

    def step(pick: Pick, own: RowClass, carry: None) -> tuple[None, list[Array]]:
        out, lse = forward_chunk(make_chunk(pick, False, own.needs_mask), options, operands, facts)
        return carry, [lead(out, pick, 2), lead(lse, pick, 1)]

    _, (out, lse) = run_loop(make_loop(options, operands, False), step, None, (0.0, MASKED))
    return unlead(out, 2), unlead(lse, 1)


def visit_forward(options: Options, operands: Operands, facts: Facts) -> tuple[Any, Any]:
    """`visit`, and what its backward pass needs."""
    out, lse = visit(options, operands, facts)
    return (out, lse), (operands, facts, out, lse)


def visit_backward(options: Options, kept: Any, cotangents: tuple[Array, Array]) -> tuple[Operands, None]:
    """Gradients of the operands."""
    operands, facts, out, lse = kept
    dout, dlse = cotangents
    delta = (dout.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1) - dlse.astype(jnp.float32)
    # Weights of queries that only fill up tiles are 0, whatever pattern and bias say of their positions.
    exists = facts.queries.numbers_11nS[:, :, None] >= 0
    saved = Saved(
        jnp.where(exists, with_empty_tile(lse, 3), -MASKED),
        with_empty_tile(dout.astype(operands.q_BGhnSK.dtype), 3),
        with_empty_tile(delta, 3),
    )
    dq, dbias = query_gradients(options, operands, facts, saved)
    dk, dv = key_gradients(options, operands, facts, saved)
    return Operands(dq, dk, dv, dbias), None


visit.defvjp(visit_forward, visit_backward)


def with_empty_tile(x: Array, axis: int) -> Array:
    """`x` with one more, empty tile along `axis`."""
    return jnp.pad(x, [(0, int(number == axis)) for number in range(x.ndim)])


def query_gradients(options: Options, operands: Operands, facts: Facts, saved: Saved) -> tuple[Array, TileBias | None]:
    """dq [B, G, h, n, S, K] and the gradient of the bias, by query tile."""
    bias = operands.bias

    def step(pick: Pick, own: RowClass, total: Any) -> tuple[Any, list[Array]]:
        chunk = make_chunk(pick, False, own.needs_mask)
        values, into_bias = None, None
        if bias is not None:
            values, into_bias = jax.vjp(lambda rows: rows.of_rows(chunk, facts), bias.rows(pick))
        _, dlogits = backward_scores(chunk, options, operands, facts, saved, values)
        k = chunk.key(operands.k_BGnSK, 2)
        dq = jnp.einsum('BGhtqm,BGtmK->BGhtqK', dlogits.astype(k.dtype), k, preferred_element_type=jnp.float32)
        arrays = [lead(dq.astype(k.dtype), pick, 2)]
        if bias is None or into_bias is None or values is None:
            return total, arrays
        (drows,) = into_bias(sum_to(jnp.where(repeats(pick), 0.0, dlogits), values.shape))
        if bias.is_by_row:
            return total, [*arrays, jnp.moveaxis(drows.array, 3, 0)]
        return jax.tree.map(jnp.add, total, drows), arrays

    is_by_row = bias is not None and bias.is_by_row
    start = None if bias is None or is_by_row else jax.tree.map(jnp.zeros_like, bias)
    loop = make_loop(options, operands, False)
    total, arrays = run_loop(loop, step, start, (0.0,) * (1 + is_by_row))
    dq = with_empty_tile(unlead(arrays[0], 2), 3)
    if isinstance(bias, ArrayBias) and is_by_row:
        return dq, bias.from_rows([jnp.concatenate([arrays[1], jnp.zeros_like(arrays[1][:1])])])
    return dq, total


def repeats(pick: Pick) -> Array:
    """Booleans [1, 1, 1, t, q, 1]: query positions of rows that only fill up the last chunk."""
    by_row = jnp.repeat(pick.is_repeat, TILE)[None] if pick.is_shared else pick.is_repeat[:, None]
    return by_row[None, None, None, :, :, None]


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` summed over the axes that are 1 in `shape`."""
    axes = tuple(axis for axis, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return x.sum(axis=axes, keepdims=True)


def key_gradients(options: Options, operands: Operands, facts: Facts, saved: Saved) -> tuple[Array, Array]:
    """dk and dv [B, G, n, S, K], by key tile."""

    def step(pick: Pick, own: RowClass, carry: None) -> tuple[None, list[Array]]:
        chunk = make_chunk(pick, True, own.needs_mask)
        bias = None if operands.bias is None else operands.bias.tiles(chunk, facts)
        dropped, dlogits = backward_scores(chunk, options, operands, facts, saved, bias)
        q, dout = chunk.query(operands.q_BGhnSK, 2), chunk.query(saved.dout_BGhnSK, 2)
        dtype = operands.k_BGnSK.dtype
        gradients = (
            jnp.einsum('BGhtqm,BGhtqK->BGtmK', x.astype(y.dtype), y, preferred_element_type=jnp.float32).astype(dtype)
            for x, y in ((dlogits, q), (dropped, dout))
        )
        return carry, [lead(x, pick, 2) for x in gradients]

    _, arrays = run_loop(make_loop(options, operands, True), step, None, (0.0, 0.0))
    dk, dv = (with_empty_tile(unlead(x, 2), 2) for x in arrays)
    return dk, dv
