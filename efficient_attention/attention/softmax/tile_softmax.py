"""Softmax attention over the tiles of a schedule, forward and backward with recomputed weights.

The forward loop walks the query tiles in chunks: it gathers the key tiles of each row, takes one softmax over them and
keeps the output and the log-sum-exp. The backward loops recompute the weights from the log-sum-exp, once by query tile
for dq and once by key tile for dk and dv, so that they sum by gathering, never by scattering: a result does not depend
on an order of additions. The idea of both is FlashAttention's (Dao et al. 2022, arXiv 2205.14135; 2023, 2307.08691);
a whole row at a time instead of a running softmax measured faster under XLA on a CPU.

Axes here: B rows, G key heads, h query heads of a key head, n tiles, S positions of a tile, K head width; t tiles of a
chunk, w tiles of a list. Arrays over the pairs of a chunk are laid out as `Chunk` says: by query [B, G, t, h, S, w, S],
by key [B, G, t, S, w, h, S]. A leading b or g is 1 where nothing differs.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.device_forms import device_forms
from efficient_attention.attention.dropout import fold_index, is_kept, row_seeds
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.schedule import Pass, RowClass
from efficient_attention.attention.softmax.tile_bias import make_tile_bias
from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    Chunk,
    MaskInputs,
    into_tiles,
    make_side,
    mixtures,
    products,
    reorder,
)
from efficient_attention.attention.softmax.tile_loops import Loop, run_loop
from efficient_attention.attention.softmax.tile_relative import make_relative_bias
from efficient_attention.attention.softmax.tile_term import Term
from efficient_attention.attention.weights import MASKED


class Operands(NamedTuple):
    """Arrays of a pass, in tiles; the last tile of each is empty."""

    q_BGnhSK: Array  # scaled by 1 / sqrt(K)
    k_BGnSK: Array
    v_BGnSK: Array
    terms: tuple[Term, ...]  # of the logits, besides the products


@dataclasses.dataclass(frozen=True)
class Options:
    """What is static about a pass."""

    tile_pass: Pass
    dropout_rate: float
    chunk_bytes: tuple[int, int]  # where rows have lists of their own, and where they share one


def attend_pass(request: Request, heads: np.ndarray, tile_pass: Pass) -> tuple[Array, Array]:
    """Output [B, L, H, K] and log-sum-exp [B, H, L] of one pass; `heads`: the numbers of the request's heads."""
    batch, queries, _, width = request.query.shape
    options = Options(tile_pass, request.dropout.rate if request.dropout else 0.0, chunk_sizes())
    scaled = request.query * jnp.asarray(1.0 / math.sqrt(width), request.query.dtype)
    q_BLGhK = scaled.reshape(batch, queries, request.key.shape[2], -1, width)
    operands = Operands(
        into_tiles(q_BLGhK, tile_pass.query_listing, tile_pass.size).transpose(0, 3, 1, 4, 2, 5),
        into_tiles(request.key, tile_pass.key_listing, tile_pass.size).transpose(0, 3, 1, 2, 4),
        into_tiles(request.value, tile_pass.key_listing, tile_pass.size).transpose(0, 3, 1, 2, 4),
        make_terms(request, heads, tile_pass),
    )
    segments = request.segments or (None, None)
    mask_inputs = MaskInputs(
        make_side(request.positions.query, segments[0], tile_pass.query_listing, tile_pass.size),
        make_side(request.positions.key, segments[1], tile_pass.key_listing, tile_pass.size),
        None if request.dropout is None else dropout_seeds(request, request.dropout.rng, heads),
    )
    run = attend_tiles_by_head if is_wide(options, operands) else attend_tiles
    out_BGnhSK, lse_BGnhS = run(options, operands, mask_inputs)
    out_BLHK = out_BGnhSK.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, len(heads), width)[:, :queries]
    lse_BHL = lse_BGnhS.swapaxes(2, 3).reshape(batch, len(heads), -1)[..., :queries]
    back = np.argsort(tile_pass.query_listing)
    return reorder(out_BLHK, back, 1), reorder(lse_BHL, back, 2)


def make_terms(request: Request, heads: np.ndarray, tile_pass: Pass) -> tuple[Term, ...]:
    """What a request adds to the products of queries and keys, for some heads."""
    bias = make_tile_bias(request, heads, tile_pass.query_listing, tile_pass.key_listing, tile_pass.size)
    return tuple(term for term in (bias, make_relative_bias(request, heads, tile_pass)) if term is not None)


def chunk_sizes() -> tuple[int, int]:
    """Bytes of a chunk's scores where rows have lists of their own, and where they share one."""
    return device_forms().tile_step_bytes, device_forms().shared_tile_step_bytes


def dropout_seeds(request: Request, rng: Array, heads: np.ndarray) -> Array:
    """uint32 [B, G, h]: where the hash of each head's dropout bits starts, as in `dropout.keep_mask`."""
    batch = request.query.shape[0]
    seeds_BH = fold_index(row_seeds(rng, batch)[:, None], jnp.asarray(heads)[None])
    return seeds_BH.reshape(batch, request.key.shape[2], -1)


def is_wide(options: Options, operands: Operands) -> bool:
    """Whether one row of tiles over all heads is too much for a CPU's cache, so that heads should take turns.

    Elsewhere chunks are large, and heads may be spread over devices, which a loop over heads would undo.
    """
    batch, groups, _, per_group, size, _ = operands.q_BGnhSK.shape
    width = max(row_class.lists.shape[-1] for row_class in (*options.tile_pass.by_query, *options.tile_pass.by_key))
    row_bytes = 4 * batch * groups * per_group * size * size * width
    is_split = all(term.splits_by_head for term in operands.terms)
    is_splittable = groups > 1 and is_split and len(options.tile_pass.patterns) == 1
    return device_forms().takes_turns_by_head and is_splittable and row_bytes > min(options.chunk_bytes)


def attend_tiles_by_head(options: Options, operands: Operands, mask_inputs: MaskInputs) -> tuple[Array, Array]:
    """`attend_tiles`, one key head after another."""
    arrays = {'q': operands.q_BGnhSK, 'k': operands.k_BGnSK, 'v': operands.v_BGnSK}
    terms, whole = jax.tree.flatten(operands.terms)
    arrays |= {str(number): leaf for number, leaf in enumerate(terms) if leaf.shape[1] > 1}
    if mask_inputs.dropout_seeds_BGh is not None:
        arrays['seeds'] = mask_inputs.dropout_seeds_BGh

    def one(head: dict[str, Array]) -> tuple[Array, Array]:
        leaves = [head[str(number)][:, None] if str(number) in head else leaf for number, leaf in enumerate(terms)]
        q, k, v = (head[name][:, None] for name in ('q', 'k', 'v'))
        seeds = head['seeds'][:, None] if 'seeds' in head else None
        operands_of_head = Operands(q, k, v, jax.tree.unflatten(whole, leaves))
        return attend_tiles(options, operands_of_head, mask_inputs._replace(dropout_seeds_BGh=seeds))

    out, lse = jax.lax.map(one, {name: jnp.moveaxis(x, 1, 0) for name, x in arrays.items()})
    return jnp.moveaxis(out[:, :, 0], 0, 1), jnp.moveaxis(lse[:, :, 0], 0, 1)


# ---- one chunk of pairs ----


def make_chunk(options: Options, chosen: ChosenTiles, by_key: bool, row_class: RowClass) -> Chunk:
    """The pairs of some rows of a class; results of keys that do not exist are dropped, so by key none is checked."""
    return Chunk(chosen, by_key, row_class.checks_pattern, row_class.checks_keys and not by_key, options.tile_pass.size)


def pair_products(chunk: Chunk, queries: Array, keys: Array) -> Array:
    """float32 products of queries and keys, over the pairs."""
    return products(chunk, *((keys, queries) if chunk.by_key else (queries, keys)))


def term_values(chunk: Chunk, operands: Operands, mask_inputs: MaskInputs) -> list[Array]:
    """What each term adds, over the pairs."""
    return [term.tiles(chunk, mask_inputs) for term in operands.terms]


def masked_logits(
    chunk: Chunk, options: Options, operands: Operands, mask_inputs: MaskInputs, added: list[Array]
) -> Array:
    """float32 logits over the pairs, MASKED where a pair is not allowed."""
    logits = pair_products(chunk, chunk.queries(operands.q_BGnhSK), chunk.keys(operands.k_BGnSK))
    logits = sum(added, logits)
    masks = allowed(chunk, options, mask_inputs)
    return jnp.where(functools.reduce(jnp.logical_and, masks), logits, MASKED) if masks else logits


def allowed(chunk: Chunk, options: Options, mask_inputs: MaskInputs) -> list[Array]:
    """Booleans to be broadcast over the pairs, which all must hold."""
    masks = []
    if chunk.checks_keys or chunk.checks_pattern:
        masks.append(chunk.spread_keys(mask_inputs.keys.numbers_11nS) >= 0)
    if chunk.checks_pattern:
        query, key = (
            chunk.spread_queries(mask_inputs.queries.positions_b1nS),
            chunk.spread_keys(mask_inputs.keys.positions_b1nS),
        )
        by_head = [
            pattern(query[:, min(head, query.shape[1] - 1)], key[:, min(head, key.shape[1] - 1)])
            for head, pattern in enumerate(options.tile_pass.patterns)
        ]
        masks.append(jnp.stack(by_head, axis=1))
    q_segments, k_segments = mask_inputs.queries.segments_B1nS, mask_inputs.keys.segments_B1nS
    if q_segments is not None and k_segments is not None:
        query, key = chunk.spread_queries(q_segments), chunk.spread_keys(k_segments)
        masks.append((query == key) & (key != 0))
    return masks


def dropout_factor(chunk: Chunk, options: Options, mask_inputs: MaskInputs) -> Array | None:
    """0 or 1 / (1 - rate) for each weight, from the numbers of its query and key; None without dropout."""
    if mask_inputs.dropout_seeds_BGh is None:
        return None
    bits = fold_index(
        chunk.spread_heads(mask_inputs.dropout_seeds_BGh), chunk.spread_queries(mask_inputs.queries.numbers_11nS)
    )
    keep = is_kept(fold_index(bits, chunk.spread_keys(mask_inputs.keys.numbers_11nS)), options.dropout_rate)
    return keep.astype(jnp.float32) * (1.0 / (1.0 - options.dropout_rate))


def forward_chunk(chunk: Chunk, options: Options, operands: Operands, mask_inputs: MaskInputs) -> tuple[Array, Array]:
    """Output [B, G, t, h, S, K] in the values' dtype and log-sum-exp [B, G, t, h, S] of a chunk of query tiles."""
    logits = masked_logits(chunk, options, operands, mask_inputs, term_values(chunk, operands, mask_inputs))
    maximum = logits.max(axis=(-2, -1), keepdims=True)
    weights = jnp.exp(logits - maximum)
    total = weights.sum(axis=(-2, -1))
    factor = dropout_factor(chunk, options, mask_inputs)
    weights = weights if factor is None else weights * factor
    v = chunk.keys(operands.v_BGnSK)
    out = mixtures(chunk, weights.astype(v.dtype), v)
    maximum = maximum[..., 0, 0]
    has_key = maximum > MASKED / 2  # where not, the weights mean nothing
    out = jnp.where(has_key[..., None], out / total[..., None], 0.0)
    return out.astype(v.dtype), jnp.where(has_key, maximum + jnp.log(total), MASKED)


class Saved(NamedTuple):
    """What the backward loops read besides the operands: log-sum-exp, dout and rowsum(dout out) - dlse.

    Where a query has no key, or only fills up a tile, the log-sum-exp is -MASKED, so that all its weights are 0.
    """

    lse_BGnhS: Array
    dout_BGnhSK: Array
    delta_BGnhS: Array


def backward_pairs(
    chunk: Chunk, options: Options, operands: Operands, mask_inputs: MaskInputs, saved: Saved, added: list[Array]
) -> tuple[Array, Array]:
    """(weights after dropout, gradient of the logits), both float32 over the pairs."""
    lse, delta = (chunk.queries(x) for x in (saved.lse_BGnhS, saved.delta_BGnhS))
    lse, delta = (x[:, :, :, None] if chunk.by_key else x[..., None, None] for x in (lse, delta))
    weights = jnp.exp(masked_logits(chunk, options, operands, mask_inputs, added) - lse)
    dweights = pair_products(chunk, chunk.queries(saved.dout_BGnhSK), chunk.keys(operands.v_BGnSK))
    factor = dropout_factor(chunk, options, mask_inputs)
    dropped = weights if factor is None else weights * factor
    dweights = dweights if factor is None else dweights * factor
    return dropped, weights * (dweights - delta)


# ---- loops ----


def make_loop(options: Options, operands: Operands, by_key: bool) -> Loop:
    """The loop over query tiles or over key tiles."""
    batch, groups, query_tiles, per_group, size, _ = operands.q_BGnhSK.shape
    return Loop(
        options.tile_pass.by_key if by_key else options.tile_pass.by_query,
        (operands.k_BGnSK.shape[2] if by_key else query_tiles) - 1,
        4 * batch * groups * per_group * size * size,
        options.chunk_bytes,
    )


def rows_first(x: Array) -> Array:
    """[B, G, t, ...] as [t, B, G, ...]."""
    return jnp.moveaxis(x, 2, 0)


def rows_third(x: Array) -> Array:
    """[t, B, G, ...] as [B, G, t, ...]."""
    return jnp.moveaxis(x, 0, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_tiles(options: Options, operands: Operands, mask_inputs: MaskInputs) -> tuple[Array, Array]:
    """Output [B, G, n, h, S, K] and log-sum-exp [B, G, n, h, S] over the tiles of a pass, without the empty tile."""

    def step(chosen: ChosenTiles, row_class: RowClass, carry: None) -> tuple[None, list[Array]]:
        out, lse = forward_chunk(make_chunk(options, chosen, False, row_class), options, operands, mask_inputs)
        return carry, [rows_first(out), rows_first(lse)]

    _, (out, lse) = run_loop(make_loop(options, operands, False), step, None, (0.0, MASKED))
    return rows_third(out), rows_third(lse)


def attend_tiles_forward(options: Options, operands: Operands, mask_inputs: MaskInputs) -> tuple[Any, Any]:
    """`attend_tiles`, and what its backward pass needs."""
    out, lse = attend_tiles(options, operands, mask_inputs)
    return (out, lse), (operands, mask_inputs, out, lse)


def attend_tiles_backward(options: Options, kept: Any, cotangents: tuple[Array, Array]) -> tuple[Operands, None]:
    """Gradients of the operands."""
    operands, mask_inputs, out, lse = kept
    dout, dlse = cotangents
    delta = (dout.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1) - dlse.astype(jnp.float32)
    exists = mask_inputs.queries.numbers_11nS[:, :, :, None] >= 0
    lse = with_empty_tile(lse)
    saved = Saved(
        jnp.where(exists & (lse > MASKED / 2), lse, -MASKED),
        with_empty_tile(dout.astype(operands.q_BGnhSK.dtype)),
        with_empty_tile(delta),
    )
    dq, dterms = query_gradients(options, operands, mask_inputs, saved)
    dk, dv = key_gradients(options, operands, mask_inputs, saved)
    return Operands(dq, dk, dv, dterms), None


attend_tiles.defvjp(attend_tiles_forward, attend_tiles_backward)


def with_empty_tile(x: Array) -> Array:
    """`x` [B, G, n, ...] with one more, empty tile."""
    return jnp.pad(x, [(0, int(axis == 2)) for axis in range(x.ndim)])


def query_gradients(
    options: Options, operands: Operands, mask_inputs: MaskInputs, saved: Saved
) -> tuple[Array, tuple[Term, ...]]:
    """dq [B, G, n, h, S, K] and the gradients of the terms, by query tile."""
    terms = operands.terms

    def step(chosen: ChosenTiles, row_class: RowClass, totals: list[Any]) -> tuple[list[Any], list[Array]]:
        chunk = make_chunk(options, chosen, False, row_class)
        pulled = [jax.vjp(lambda rows: rows.of_rows(chunk, mask_inputs), term.rows(chosen)) for term in terms]
        _, dlogits = backward_pairs(chunk, options, operands, mask_inputs, saved, [values for values, _ in pulled])
        k = chunk.keys(operands.k_BGnSK)
        arrays = [rows_first(mixtures(chunk, dlogits.astype(k.dtype), k).astype(k.dtype))]
        dlogits = jnp.where(chosen.is_repeat.reshape(-1, 1, 1, 1, 1), 0.0, dlogits) if terms else dlogits
        after = []
        for term, total, (values, pull) in zip(terms, totals, pulled, strict=True):
            total, by_row = term.collect(total, chosen, pull(sum_to(dlogits, values.shape))[0])
            after.append(total)
            arrays += by_row
        return after, arrays

    by_row = [term.has_row_gradient for term in terms]
    loop = make_loop(options, operands, False)
    totals, arrays = run_loop(loop, step, [term.start() for term in terms], (0.0,) * (1 + sum(by_row)))
    dq, *rest = arrays
    gradients = [
        term.join(total, [rest.pop(0)] if has_rows else [])
        for term, total, has_rows in zip(terms, totals, by_row, strict=True)
    ]
    return with_empty_tile(rows_third(dq)), tuple(gradients)


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` summed over the axes that are 1 in `shape`."""
    axes = tuple(axis for axis, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return x.sum(axis=axes, keepdims=True)


def key_gradients(options: Options, operands: Operands, mask_inputs: MaskInputs, saved: Saved) -> tuple[Array, Array]:
    """dk and dv [B, G, n, S, K], by key tile."""

    def step(chosen: ChosenTiles, row_class: RowClass, carry: None) -> tuple[None, list[Array]]:
        chunk = make_chunk(options, chosen, True, row_class)
        added = term_values(chunk, operands, mask_inputs)
        dropped, dlogits = backward_pairs(chunk, options, operands, mask_inputs, saved, added)
        q, dout = chunk.queries(operands.q_BGnhSK), chunk.queries(saved.dout_BGnhSK)
        dtype = operands.k_BGnSK.dtype
        dk, dv = (mixtures(chunk, x.astype(y.dtype), y).astype(dtype) for x, y in ((dlogits, q), (dropped, dout)))
        return carry, [rows_first(dk), rows_first(dv)]

    _, arrays = run_loop(make_loop(options, operands, True), step, None, (0.0, 0.0))
    dk, dv = (with_empty_tile(rows_third(x)) for x in arrays)
    return dk, dv
