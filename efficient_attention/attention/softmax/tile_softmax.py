"""Computes softmax attention over a set of tiles, and its gradients, for which it recomputes the attention weights.

The forward loop computes a few query tiles per step. It gathers the key tiles that each query tile visits, takes one
softmax over them, and keeps the output and the log-sum-exp. The backward loops recompute the weights from the
log-sum-exp: once by query tile for dq, and once by key tile for dk and dv. If the query tiles of each class visit the
same key tiles, as in full and causal attention, the loop over query tiles can also sum dk and dv
(`DeviceTuning.sums_keys_by_query`). No loop scatters to repeated indices, so the order of additions is fixed. The
algorithm follows FlashAttention (Dao et al. 2022,
arXiv 2205.14135; 2023, 2307.08691). One softmax over all visited tiles, instead of a running one, measured faster under
XLA on a CPU.

Axes here: B batch rows, G key heads, h query heads of a key head, n tiles, S positions of a tile, K head width; t
computed tiles of a chunk, w visited tiles of each. Arrays over the pairs of a chunk have the layout of `TileChunk`:
by query [B, G, t, h, S, w, S], by key [B, G, t, S, w, h, S]. A leading b or g is 1 where nothing differs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.softmax.logit_term import LogitTerm
from efficient_attention.attention.softmax.tile_chunk_softmax import (
    SavedTiles,
    TileOperands,
    TileOptions,
    forward_chunk,
    make_chunk,
    term_values,
    weights_and_logit_gradients,
)
from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    TileChunk,
    TileMaskInputs,
    take_tiles_by_head,
    weighted_sums,
)
from efficient_attention.attention.softmax.tile_loops import TileLoop, run_tile_loop
from efficient_attention.attention.softmax.tile_schedule import TileClass


def make_tile_loop(options: TileOptions, operands: TileOperands, by_key: bool) -> TileLoop:
    """Returns the static description of the loop over the query tiles of a `TilePass`; if `by_key`, of the loop over
    its key tiles.
    """
    batch, groups, query_tiles, per_group, size, _ = operands.q_BGnhSK.shape
    return TileLoop(
        options.tile_pass.by_key if by_key else options.tile_pass.by_query,
        (operands.k_BGnSK.shape[2] if by_key else query_tiles) - 1,
        4 * batch * groups * per_group * size * size,
        options.step_bytes,
    )


def tile_axis_to_front(x: Shaped[Array, '...']) -> Array:
    """Returns an array [B, G, t, ...] as [t, B, G, ...], with the axis of tiles in front."""
    return jnp.moveaxis(x, 2, 0)


def tile_axis_to_third(x: Shaped[Array, '...']) -> Array:
    """Returns an array [t, B, G, ...] as [B, G, t, ...], with the axis of tiles in third place."""
    return jnp.moveaxis(x, 0, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_tiles(options: TileOptions, operands: TileOperands, mask_inputs: TileMaskInputs) -> tuple[Array, Array]:
    """Returns the attention output [B, G, n, h, S, K] and log-sum-exp [B, G, n, h, S] of all query tiles of a
    `TilePass`.
    """

    def step(chosen: ChosenTiles, tile_class: TileClass, carry: None) -> tuple[None, list[Array]]:
        out, lse = forward_chunk(make_chunk(options, chosen, False, tile_class), options, operands, mask_inputs)
        return carry, [tile_axis_to_front(out), tile_axis_to_front(lse)]

    _, (out, lse) = run_tile_loop(
        make_tile_loop(options, operands, False), step, None, (0.0, MASKED), mask_inputs.layer
    )
    return tile_axis_to_third(out), tile_axis_to_third(lse)


def attend_tiles_forward(options: TileOptions, operands: TileOperands, mask_inputs: TileMaskInputs) -> tuple[Any, Any]:
    """Returns the results of `attend_tiles`, and the values saved for its backward pass."""
    out, lse = attend_tiles(options, operands, mask_inputs)
    return (out, lse), (operands, mask_inputs, out, lse)


def attend_tiles_backward(
    options: TileOptions, kept: Any, cotangents: tuple[Array, Array]
) -> tuple[TileOperands, None]:
    """Returns the gradients of queries, keys, values and logit terms for the tiles of a `TilePass`; mask inputs have no
    gradient.
    """
    operands, mask_inputs, out, lse = kept
    dout, dlse = cotangents
    delta = (dout.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1) - dlse.astype(jnp.float32)
    exists = mask_inputs.queries.numbers_11nS[:, :, :, None] >= 0
    lse = with_empty_tile(lse)
    saved = SavedTiles(
        jnp.where(exists & (lse > MASKED / 2), lse, -MASKED),
        with_empty_tile(dout.astype(operands.q_BGnhSK.dtype)),
        with_empty_tile(delta),
    )
    dq, dterms, dkv = query_gradients(options, operands, mask_inputs, saved)
    dk, dv = dkv or key_gradients(options, operands, mask_inputs, saved)
    return TileOperands(dq, dk, dv, dterms), None


attend_tiles.defvjp(attend_tiles_forward, attend_tiles_backward)


def with_empty_tile(x: Shaped[Array, '...']) -> Array:
    """Returns `x` [B, G, n, ...] with one empty tile appended."""
    return jnp.pad(x, [(0, int(axis == 2)) for axis in range(x.ndim)])


def query_gradients(
    options: TileOptions, operands: TileOperands, mask_inputs: TileMaskInputs, saved: SavedTiles
) -> tuple[Array, tuple[LogitTerm, ...], tuple[Array, ...]]:
    """Returns the gradients of the queries [B, G, n, h, S, K] and of the logit terms, from a loop over query tiles.

    The last result has the gradients of the keys and of the values, both [B, G, n, S, K], if the loop sums them.
    Otherwise it is empty.
    """
    terms = operands.terms

    def step(chosen: ChosenTiles, tile_class: TileClass, carry: tuple[Any, Any]) -> tuple[tuple[Any, Any], list[Array]]:
        totals, key_sums = carry
        chunk = make_chunk(options, chosen, False, tile_class)
        pulled = [
            jax.vjp(lambda read: read.read_values(chunk, mask_inputs), term.select_for_chunk(chosen)) for term in terms
        ]
        dropped, dlogits = weights_and_logit_gradients(
            chunk, options, operands, mask_inputs, saved, [values for values, _ in pulled]
        )
        k = chunk.select_key_tiles(operands.k_BGnSK)
        arrays = [tile_axis_to_front(weighted_sums(chunk, dlogits.astype(k.dtype), k).astype(k.dtype))]
        if key_sums:
            pairs, vectors = (dlogits, dropped), (operands.q_BGnhSK, saved.dout_BGnhSK)
            key_sums = tuple(add_sums_of_keys(chunk, *x) for x in zip(key_sums, pairs, vectors, strict=True))
        dlogits = jnp.where(chosen.is_repeat_t.reshape(-1, 1, 1, 1, 1), 0.0, dlogits) if terms else dlogits
        after = []
        for term, total, (values, pull) in zip(terms, totals, pulled, strict=True):
            total, complete = term.add_chunk_gradient(total, chosen, pull(sum_to_shape(dlogits, values.shape))[0])
            after.append(total)
            arrays += complete
        return (after, key_sums), arrays

    by_tile = [term.has_tile_gradient for term in terms]
    loop = make_tile_loop(options, operands, False)
    zeros, fills = [term.zero_gradient() for term in terms], (0.0,) * (1 + sum(by_tile))
    batch, groups, tiles, size, width = operands.k_BGnSK.shape
    # The axis K comes before the positions, see `add_sums_of_keys`; the empty tile has no sums.
    zero_sums_BGKnS = jnp.zeros((batch, groups, width, tiles - 1, size), jnp.float32)
    can_sum = options.sums_keys_by_query and all(one.is_shared for one in loop.classes)
    key_sums = 2 * (zero_sums_BGKnS,) if can_sum else ()
    (totals, key_sums), arrays = run_tile_loop(loop, step, (zeros, key_sums), fills, mask_inputs.layer)
    dq, *rest = arrays
    gradients = [
        term.finish_gradient(total, [rest.pop(0)] if has_array else [])
        for term, total, has_array in zip(terms, totals, by_tile, strict=True)
    ]
    dkv = tuple(with_empty_tile(jnp.moveaxis(x, 2, -1).astype(operands.k_BGnSK.dtype)) for x in key_sums)
    return with_empty_tile(tile_axis_to_third(dq)), tuple(gradients), dkv


def add_sums_of_keys(chunk: TileChunk, total_BGKnS: Array, pairs_BGthSwS: Array, vectors_BGnhSK: Array) -> Array:
    """Returns `total_BGKnS` plus, for each key of the visited tiles, the sum of the chunk's query vectors weighted by
    `pairs_BGthSwS`.

    All computed tiles visit the same tiles. With the axis K before the positions, the product is several times faster
    on a CPU, because its left operand is summed over the last axes.
    """
    x_BGthSK = jnp.where(chunk.chosen.is_repeat_t[:, None, None, None], 0, chunk.select_query_tiles(vectors_BGnhSK))
    x_BGKthS = jnp.moveaxis(x_BGthSK, -1, 2)
    axes = ((3, 4, 5), (2, 3, 4)), ((0, 1), (0, 1))
    sums_BGKwS = jax.lax.dot_general(
        x_BGKthS, pairs_BGthSwS.astype(x_BGKthS.dtype), axes, preferred_element_type=jnp.float32
    )
    visited = chunk.chosen.visited
    if np.array_equal(visited, np.arange(len(visited))):
        sums_BGKwS += total_BGKnS[:, :, :, : len(visited)]
        return jax.lax.dynamic_update_slice_in_dim(total_BGKnS, sums_BGKwS, 0, axis=3)
    return total_BGKnS.at[:, :, :, visited].add(sums_BGKwS, unique_indices=True, indices_are_sorted=True)


def sum_to_shape(x: Shaped[Array, '...'], shape: tuple[int, ...]) -> Array:
    """Returns `x` summed over the axes that have size 1 in `shape`."""
    axes = tuple(axis for axis, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return x.sum(axis=axes, keepdims=True)


def key_gradients(
    options: TileOptions, operands: TileOperands, mask_inputs: TileMaskInputs, saved: SavedTiles
) -> tuple[Array, Array]:
    """Returns the gradients of the keys and of the values, both [B, G, n, S, K], from a loop over key tiles."""
    sorted_keys = None if operands.terms else options.tile_pass.sorted_keys
    loop = make_tile_loop(options, operands, True)
    if sorted_keys is not None:
        loop = loop._replace(classes=sorted_keys.by_key)
        order_Nhn = sorted_keys.order_Nhn
        layer = 0 if len(order_Nhn) == 1 else mask_inputs.layer
        operands, mask_inputs = renumber_key_tiles(operands, mask_inputs, jnp.asarray(order_Nhn)[layer])

    def step(chosen: ChosenTiles, tile_class: TileClass, carry: None) -> tuple[None, list[Array]]:
        chunk = make_chunk(options, chosen, True, tile_class)
        added = term_values(chunk, operands, mask_inputs)
        dropped, dlogits = weights_and_logit_gradients(chunk, options, operands, mask_inputs, saved, added)
        q, dout = chunk.select_query_tiles(operands.q_BGnhSK), chunk.select_query_tiles(saved.dout_BGnhSK)
        dtype = operands.k_BGnSK.dtype
        dk, dv = (weighted_sums(chunk, x.astype(y.dtype), y).astype(dtype) for x, y in ((dlogits, q), (dropped, dout)))
        return carry, [tile_axis_to_front(dk), tile_axis_to_front(dv)]

    _, arrays = run_tile_loop(loop, step, None, (0.0, 0.0), mask_inputs.layer)
    dk, dv = (tile_axis_to_third(x) for x in arrays)
    if sorted_keys is not None:
        back_hn = jnp.asarray(np.argsort(sorted_keys.order_Nhn, axis=-1))[layer]
        dk, dv = take_tiles_by_head(dk, back_hn), take_tiles_by_head(dv, back_hn)
    return with_empty_tile(dk), with_empty_tile(dv)


def renumber_key_tiles(
    operands: TileOperands, mask_inputs: TileMaskInputs, order_hn: Array
) -> tuple[TileOperands, TileMaskInputs]:
    """Returns the operands and mask inputs with their key tiles in the order `order_hn` of each head; the empty tile
    stays last.
    """
    empty = operands.k_BGnSK.shape[2] - 1
    order_hn = jnp.pad(order_hn, ((0, 0), (0, 1)), constant_values=empty)
    keys = jax.tree.map(lambda x: take_tiles_by_head(x, order_hn), mask_inputs.keys)
    k_BGnSK, v_BGnSK = (take_tiles_by_head(x, order_hn) for x in (operands.k_BGnSK, operands.v_BGnSK))
    return operands._replace(k_BGnSK=k_BGnSK, v_BGnSK=v_BGnSK), mask_inputs._replace(keys=keys)
