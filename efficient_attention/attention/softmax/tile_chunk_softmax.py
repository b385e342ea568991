"""Computes one chunk of a loop over tiles: its masked logits, their softmax, and the gradient of the logits.

Axes as in tile_softmax.py; arrays over the pairs of a chunk have the layout of `TileChunk`.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.dropout import hash_in_index, is_kept
from efficient_attention.attention.layer_choice import compute_for_layer
from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.softmax.logit_term import LogitTerm
from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    TileChunk,
    TileMaskInputs,
    dot_products,
    weighted_sums,
)
from efficient_attention.attention.softmax.tile_schedule import TileClass, TilePass


class TileOperands(NamedTuple):
    """The queries, keys, values and logit terms that loops over the tiles of a `TilePass` read, cut into tiles.

    Each array ends with an empty tile: lists of visited tiles are padded with its index to equal length.
    """

    q_BGnhSK: Array  # queries, scaled by 1 / sqrt(K)
    k_BGnSK: Array
    v_BGnSK: Array
    terms: tuple[LogitTerm, ...]  # terms, such as a bias, that are added to the dot products of queries and keys


@dataclasses.dataclass(frozen=True)
class TileOptions:
    """The static options of loops over tiles: the tiles, the dropout rate and the size of loop steps."""

    tile_pass: TilePass
    dropout_rate: float
    # bytes of scores per loop step, first for tiles with separate lists of visited tiles, then for tiles with one list
    step_bytes: tuple[int, int]
    sums_keys_by_query: bool  # as in `DeviceTuning`


def make_chunk(options: TileOptions, chosen: ChosenTiles, by_key: bool, tile_class: TileClass) -> TileChunk:
    """Returns the `TileChunk` of one loop step, from the indices of the tiles that the step computes; all these tiles
    belong to the class `tile_class`.

    If key tiles are computed, keys that do not exist are not masked, because their results are dropped.
    """
    return TileChunk(
        chosen, by_key, tile_class.checks_pattern, tile_class.checks_keys and not by_key, options.tile_pass.size
    )


def term_values(chunk: TileChunk, operands: TileOperands, mask_inputs: TileMaskInputs) -> list[Array]:
    """Returns the values that each logit term, such as a bias, adds to the logits of a chunk's query-key pairs."""
    return [term.chunk_values(chunk, mask_inputs) for term in operands.terms]


def masked_logits(
    chunk: TileChunk, options: TileOptions, operands: TileOperands, mask_inputs: TileMaskInputs, terms: list[Array]
) -> Array:
    """Returns the float32 logits of a chunk's query-key pairs, including bias and relative term,
    with MASKED for forbidden pairs.
    """
    logits = dot_products(chunk, chunk.select_query_tiles(operands.q_BGnhSK), chunk.select_key_tiles(operands.k_BGnSK))
    logits = sum(terms, logits)
    masks = allowed_pairs(chunk, options, mask_inputs)
    return jnp.where(functools.reduce(jnp.logical_and, masks), logits, MASKED) if masks else logits


def allowed_pairs(chunk: TileChunk, options: TileOptions, mask_inputs: TileMaskInputs) -> list[Array]:
    """Returns a list of masks that broadcast over a chunk's query-key pairs;
    a pair is allowed if all masks are True.
    """
    masks = []
    if chunk.checks_keys or chunk.checks_pattern:
        masks.append(chunk.broadcast_keys(mask_inputs.keys.numbers_11nS) >= 0)
    if chunk.checks_pattern:
        query, key = (
            chunk.broadcast_queries(mask_inputs.queries.positions_b1nS),
            chunk.broadcast_keys(mask_inputs.keys.positions_b1nS),
        )

        def pattern_mask(patterns: tuple[Pattern, ...]) -> Array:
            by_head = [
                pattern(query[:, min(head, query.shape[1] - 1)], key[:, min(head, key.shape[1] - 1)])
                for head, pattern in enumerate(patterns)
            ]
            return jnp.stack(by_head, axis=1)

        masks.append(compute_for_layer(pattern_mask, options.tile_pass.patterns, mask_inputs.layer))
    q_segments, k_segments = mask_inputs.queries.segments_B1nS, mask_inputs.keys.segments_B1nS
    if q_segments is not None and k_segments is not None:
        query, key = chunk.broadcast_queries(q_segments), chunk.broadcast_keys(k_segments)
        masks.append((query == key) & (key != 0))
    return masks


def dropout_factor(chunk: TileChunk, options: TileOptions, mask_inputs: TileMaskInputs) -> Array | None:
    """Returns the dropout factor 0 or 1 / (1 - rate) for each query-key pair of a chunk; None without dropout."""
    if mask_inputs.dropout_seeds_BGh is None:
        return None
    bits = hash_in_index(
        chunk.broadcast_heads(mask_inputs.dropout_seeds_BGh), chunk.broadcast_queries(mask_inputs.queries.numbers_11nS)
    )
    keep = is_kept(hash_in_index(bits, chunk.broadcast_keys(mask_inputs.keys.numbers_11nS)), options.dropout_rate)
    return keep.astype(jnp.float32) * (1.0 / (1.0 - options.dropout_rate))


def forward_chunk(
    chunk: TileChunk, options: TileOptions, operands: TileOperands, mask_inputs: TileMaskInputs
) -> tuple[Array, Array]:
    """Returns the attention output [B, G, t, h, S, K] in the values' dtype
    and the log-sum-exp [B, G, t, h, S] of a chunk's query tiles.
    """
    logits = masked_logits(chunk, options, operands, mask_inputs, term_values(chunk, operands, mask_inputs))
    maximum = logits.max(axis=(-2, -1), keepdims=True)
    weights = jnp.exp(logits - maximum)
    total = weights.sum(axis=(-2, -1))
    factor = dropout_factor(chunk, options, mask_inputs)
    weights = weights if factor is None else weights * factor
    v = chunk.select_key_tiles(operands.v_BGnSK)
    out = weighted_sums(chunk, weights.astype(v.dtype), v)
    maximum = maximum[..., 0, 0]
    has_key = maximum > MASKED / 2  # a query without an allowed key has meaningless weights
    out = jnp.where(has_key[..., None], out / total[..., None], 0.0)
    return out.astype(v.dtype), jnp.where(has_key, maximum + jnp.log(total), MASKED)


class SavedTiles(NamedTuple):
    """Arrays that the backward loops over tiles read besides the operands:
    log-sum-exp, dout, and rowsum(dout out) - dlse.

    If a query has no key or only pads a tile, its log-sum-exp is -MASKED, so that all its weights are 0.
    """

    lse_BGnhS: Array
    dout_BGnhSK: Array
    delta_BGnhS: Array


def weights_and_logit_gradients(
    chunk: TileChunk,
    options: TileOptions,
    operands: TileOperands,
    mask_inputs: TileMaskInputs,
    saved: SavedTiles,
    terms: list[Array],
) -> tuple[Array, Array]:
    """Returns the attention weights after dropout and the gradient of the logits,
    both in float32 for a chunk's query-key pairs.
    """
    lse, delta = (chunk.select_query_tiles(x) for x in (saved.lse_BGnhS, saved.delta_BGnhS))
    lse, delta = (x[:, :, :, None] if chunk.by_key else x[..., None, None] for x in (lse, delta))
    weights = jnp.exp(masked_logits(chunk, options, operands, mask_inputs, terms) - lse)
    dweights = dot_products(
        chunk, chunk.select_query_tiles(saved.dout_BGnhSK), chunk.select_key_tiles(operands.v_BGnSK)
    )
    factor = dropout_factor(chunk, options, mask_inputs)
    dropped = weights if factor is None else weights * factor
    dweights = dweights if factor is None else dweights * factor
    return dropped, weights * (dweights - delta)
