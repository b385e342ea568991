"""Computes softmax attention over one pattern's tiles: cuts arrays into tiles, runs the loops, and restores the order
of positions.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.device_mesh import is_axis_sharded
from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.dropout import hash_in_index, row_seeds
from efficient_attention.attention.layer_choice import layer_index
from efficient_attention.attention.request import QueryKeyPair, Request
from efficient_attention.attention.softmax.logit_term import LogitTerm
from efficient_attention.attention.softmax.tile_bias import make_tile_bias
from efficient_attention.attention.softmax.tile_chunk_softmax import TileOperands, TileOptions
from efficient_attention.attention.softmax.tile_chunks import (
    TileMaskInputs,
    make_token_mask_inputs,
    reorder,
    split_into_tiles,
)
from efficient_attention.attention.softmax.tile_relative import make_relative_bias
from efficient_attention.attention.softmax.tile_schedule import TilePass
from efficient_attention.attention.softmax.tile_softmax import attend_tiles


def attend_pass(request: Request, heads_H: np.ndarray, tile_pass: TilePass) -> tuple[Array, Array]:
    """Returns the attention output [B, L, H, K] and log-sum-exp [B, H, L] over the tiles of one `TilePass`, for the
    heads `heads_H`.
    """
    batch, queries, _, width = request.query.shape
    rate = request.dropout.rate if request.dropout else 0.0
    options = TileOptions(tile_pass, rate, step_byte_sizes(), device_tuning().sums_keys_by_query)
    scaled = request.query * jnp.asarray(1.0 / math.sqrt(width), request.query.dtype)
    q_BLGhK = scaled.reshape(batch, queries, request.key.shape[2], -1, width)
    operands = TileOperands(
        split_into_tiles(q_BLGhK, tile_pass.query_listing_L, tile_pass.size).transpose(0, 3, 1, 4, 2, 5),
        split_into_tiles(request.key, tile_pass.key_listing_M, tile_pass.size).transpose(0, 3, 1, 2, 4),
        split_into_tiles(request.value, tile_pass.key_listing_M, tile_pass.size).transpose(0, 3, 1, 2, 4),
        make_logit_terms(request, heads_H, tile_pass),
    )
    segments = request.segments or (None, None)
    positions, size = request.full_row_positions, tile_pass.size
    numbers = (
        QueryKeyPair(None, None)
        if request.place is None
        else QueryKeyPair(request.global_indices('query'), request.global_indices('key'))
    )
    mask_inputs = TileMaskInputs(
        make_token_mask_inputs(positions.query, segments[0], tile_pass.query_listing_L, size, numbers.query),
        make_token_mask_inputs(positions.key, segments[1], tile_pass.key_listing_M, size, numbers.key),
        None if request.dropout is None else dropout_seeds(request, request.dropout.rng, heads_H),
        layer_index(tile_pass.patterns[0], request.layer),
    )
    run = attend_tiles_by_head if exceeds_step_size(options, operands) else attend_tiles
    out_BGnhSK, lse_BGnhS = run(options, operands, mask_inputs)
    out_BLHK = out_BGnhSK.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, len(heads_H), width)[:, :queries]
    lse_BHL = lse_BGnhS.swapaxes(2, 3).reshape(batch, len(heads_H), -1)[..., :queries]
    back_L = np.argsort(tile_pass.query_listing_L)
    return reorder(out_BLHK, back_L, 1), reorder(lse_BHL, back_L, 2)


def make_logit_terms(request: Request, heads_H: np.ndarray, tile_pass: TilePass) -> tuple[LogitTerm, ...]:
    """Returns the logit terms of an attention request (bias and relative term)
    for the heads `heads_H`, cut into tiles.
    """
    bias = make_tile_bias(request, heads_H, tile_pass.query_listing_L, tile_pass.key_listing_M, tile_pass.size)
    return tuple(term for term in (bias, make_relative_bias(request, heads_H, tile_pass)) if term is not None)


def step_byte_sizes() -> tuple[int, int]:
    """Returns the bytes of scores per loop step as two numbers: for tiles with separate lists of visited tiles, and for
    tiles that share one list.
    """
    return device_tuning().tile_step_bytes, device_tuning().shared_tile_step_bytes


def dropout_seeds(request: Request, rng: Array, heads_H: np.ndarray) -> Array:
    """Returns a uint32 seed [B, G, h] for each row and head, from which dropout bits are hashed as in
    `dropout.dropout_keep_mask`.
    """
    batch, numbers_H = request.query.shape[0], jnp.asarray(heads_H)
    if request.place is not None:
        numbers_H = numbers_H + request.place.first_head
    seeds_BH = hash_in_index(row_seeds(rng, batch)[:, None], numbers_H[None])
    return seeds_BH.reshape(batch, request.key.shape[2], -1)


def exceeds_step_size(options: TileOptions, operands: TileOperands) -> bool:
    """Returns whether to compute key heads one after another. This saves memory on devices with small loop steps, if
    the scores of one tile over all heads exceed a step.

    Heads that are sharded over devices are not looped over, because each head would have to be gathered.
    """
    batch, groups, _, per_group, size, _ = operands.q_BGnhSK.shape
    width = max(
        tile_class.visited_Nhnw.shape[-1] for tile_class in (*options.tile_pass.by_query, *options.tile_pass.by_key)
    )
    tile_bytes = 4 * batch * groups * per_group * size * size * width
    is_by_head = all(term.splits_by_head for term in operands.terms) and not is_axis_sharded('H')
    is_splittable = groups > 1 and is_by_head and len(options.tile_pass.patterns) == 1
    return device_tuning().takes_turns_by_head and is_splittable and tile_bytes > min(options.step_bytes)


def attend_tiles_by_head(
    options: TileOptions, operands: TileOperands, mask_inputs: TileMaskInputs
) -> tuple[Array, Array]:
    """Returns the results of `attend_tiles`, computed one key head after another to save memory."""
    arrays = {'q': operands.q_BGnhSK, 'k': operands.k_BGnSK, 'v': operands.v_BGnSK}
    terms, whole = jax.tree.flatten(operands.terms)
    arrays |= {str(number): leaf for number, leaf in enumerate(terms) if leaf.shape[1] > 1}
    if mask_inputs.dropout_seeds_BGh is not None:
        arrays['seeds'] = mask_inputs.dropout_seeds_BGh

    def one(head: dict[str, Array]) -> tuple[Array, Array]:
        leaves = [head[str(number)][:, None] if str(number) in head else leaf for number, leaf in enumerate(terms)]
        q, k, v = (head[name][:, None] for name in ('q', 'k', 'v'))
        seeds = head['seeds'][:, None] if 'seeds' in head else None
        operands_of_head = TileOperands(q, k, v, jax.tree.unflatten(whole, leaves))
        return attend_tiles(options, operands_of_head, mask_inputs._replace(dropout_seeds_BGh=seeds))

    out, lse = jax.lax.map(one, {name: jnp.moveaxis(x, 1, 0) for name, x in arrays.items()})
    return jnp.moveaxis(out[:, :, 0], 0, 1), jnp.moveaxis(lse[:, :, 0], 0, 1)
