"""The backend `mosaic`: softmax attention over any pattern on NVIDIA Hopper GPUs, forward and backward, by kernels that
visit only the tiles that the pattern and the segments keep.

The kernels are in attention/block_sparse/. This file splits a call into groups of heads and passes, and on a mesh into
the calls of each device. Padding of keys has segment 0 and padding of queries segment -1, so no token reads either.
Results of padding are cut off.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Float, Int

from efficient_attention.attention.block_sparse.listed_attention import (
    COMPUTED,
    attend_lists,
    lacks_of_kernels,
    pad_to_tiles,
    pad_vectors,
    tile_sizes,
)
from efficient_attention.attention.block_sparse.lists import choose_lists, make_lists
from efficient_attention.attention.block_sparse.tiles import KernelOptions, Tokens
from efficient_attention.attention.block_sparse.work import count_visits
from efficient_attention.attention.device_mesh import (
    ACTIVATIONS,
    device_mesh,
    has_divisible_heads,
    is_axis_sharded,
    partition,
)
from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.dropout import hash_in_index, hash_in_indices, row_seeds, spread_index
from efficient_attention.attention.layer_choice import layer_index
from efficient_attention.attention.logits.definition import request_pattern
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.partial_softmax import merge_partial_softmax
from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.patterns.tile_table import order_by_residue, split_into_disjoint_patterns
from efficient_attention.attention.request import QueryKeyPair, Request
from efficient_attention.attention.softmax.blocked_backend import (
    head_groups,
    join_head_groups,
    pick_heads,
    static_positions,
)
from efficient_attention.attention.softmax.tile_chunks import reorder


class Operands(NamedTuple):
    """The arrays of a call, all of whole rows or all of one device's rows and heads."""

    q_BLHK: Array
    k_BMGK: Array
    v_BMGK: Array
    segments: QueryKeyPair | None  # int32 [B, L] and [B, M]
    positions: QueryKeyPair  # int32 [1 or B, L] and [1 or B, M]
    seeds_BH: Array | None  # of dropout
    numbers: QueryKeyPair  # int32 [L] and [M], indices of queries and keys, which dropout hashes
    layer: Int[Array, ''] | None


class Call(NamedTuple):
    """What is static in a call."""

    pattern: Pattern
    positions: QueryKeyPair  # positions that are known at trace time, as `static_positions` gives them
    dropout_rate: float
    is_interpreted: bool


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Returns softmax attention's output and log-sum-exp, computed on an NVIDIA Hopper GPU from 16-bit inputs."""
    check_supported(request)
    return attend_tiles(request)


def attend_tiles(request: Request, *, is_interpreted: bool = False) -> tuple[Array, Array]:
    """Returns the output and the log-sum-exp of the kernels for a request that `check_supported` accepts.

    With `is_interpreted`, JAX emulates the kernels on a CPU; tests compare the result with the definition.
    """
    pattern, rate = request_pattern(request), 0.0
    is_static = not pattern.uses_positions
    seeds_BH = None
    if request.dropout is not None:
        rate = request.dropout.rate
        seeds_B = row_seeds(request.dropout.rng, request.query.shape[0])
        seeds_BH = hash_in_index(seeds_B[:, None], request.global_indices('head')[None])
    operands = Operands(
        request.query,
        request.key,
        request.value,
        request.segments,
        QueryKeyPair(*(jnp.asarray(x, jnp.int32) for x in request.full_row_positions)),
        seeds_BH,
        QueryKeyPair(request.global_indices('query'), request.global_indices('key')),
        layer_index(pattern, request.layer),
    )
    positions = QueryKeyPair(*(static_positions(x, is_static) for x in request.positions))
    return map_over_devices(Call(pattern, positions, rate, is_interpreted), operands)


def map_over_devices(call: Call, operands: Operands) -> tuple[Array, Array]:
    """Returns `attend_rows`; on a mesh, each device computes its own rows and heads.

    The compiler cannot shard a kernel.
    """
    mesh, attend = device_mesh(), functools.partial(attend_rows, call)
    if mesh is None:
        return attend(operands)
    by_head = has_divisible_heads(operands.q_BLHK.shape[2], operands.k_BMGK.shape[2])
    rows, _, heads, _ = partition('BKHK' if by_head else 'BKKK', operands.q_BLHK.shape, mesh, ACTIVATIONS)
    vectors, of_row = PartitionSpec(rows, None, heads), PartitionSpec(rows)
    pair = QueryKeyPair(of_row, of_row)
    of_positions = QueryKeyPair(*(of_row if len(x) > 1 else PartitionSpec() for x in operands.positions))
    of_numbers = QueryKeyPair(PartitionSpec(), PartitionSpec())
    specs: tuple[Any, ...] = vectors, vectors, vectors, pair, of_positions, PartitionSpec(rows, heads), of_numbers
    # An operand that is None has no spec.
    specs = tuple(None if x is None else spec for x, spec in zip(operands, (*specs, PartitionSpec()), strict=True))
    out_specs = vectors, PartitionSpec(rows, heads)
    return jax.shard_map(attend, mesh=mesh, in_specs=(Operands(*specs),), out_specs=out_specs, check_vma=False)(
        operands
    )


def attend_rows(call: Call, operands: Operands) -> tuple[Array, Array]:
    """Returns the output and the log-sum-exp of one device's rows and heads."""
    heads = operands.q_BLHK.shape[2]
    results = {
        group: attend_heads(call, patterns, pick_operands(operands, group))
        for group, patterns in head_groups(call.pattern, heads)
    }
    return join_head_groups(results)


def pick_operands(operands: Operands, group: tuple[int, ...]) -> Operands:
    """Returns the operands of a group of query heads."""
    heads = operands.q_BLHK.shape[2]
    if len(group) == heads:
        return operands
    q, k, v = (pick_heads(x, group, heads) for x in operands[:3])
    seeds = operands.seeds_BH
    return operands._replace(
        q_BLHK=q, k_BMGK=k, v_BMGK=v, seeds_BH=None if seeds is None else seeds[:, np.asarray(group)]
    )


def attend_heads(call: Call, patterns: tuple[Pattern, ...], operands: Operands) -> tuple[Array, Array]:
    """Returns the output and the log-sum-exp of heads whose patterns differ at most in what they look up.

    Queries and keys of a dilated or strided pattern are sorted by their positions modulo a stride, so that the pattern
    keeps few tiles. A union of patterns with several strides becomes several passes.
    """
    if any(isinstance(x, int) for x in call.positions):
        return attend_pass(call, patterns, 1, operands)
    parts = []
    for of_heads in zip(*(split_into_disjoint_patterns(pattern) for pattern in patterns), strict=True):
        parts.append(attend_pass(call, tuple(pattern for pattern, _ in of_heads), of_heads[0][1], operands))
    return merge_partial_softmax(parts)


def attend_pass(call: Call, patterns: tuple[Pattern, ...], order: int, operands: Operands) -> tuple[Array, Array]:
    """Returns the output [B, L, H, K] and the log-sum-exp [B, H, L] over disjoint patterns, one for each head or one
    for all, with positions sorted by their values modulo `order`.
    """
    (_, length, heads, width), key_heads = operands.q_BLHK.shape, operands.k_BMGK.shape[2]
    known, listings = call.positions, None
    if order > 1:
        arrays = [np.frombuffer(one, np.int32) for one in known]
        listings = [order_by_residue(one, order) for one in arrays]
        known = QueryKeyPair(*(one[listing].tobytes() for one, listing in zip(arrays, listings, strict=True)))
    by_layer = tuple(zip(*(pattern.by_layer() for pattern in patterns), strict=True))
    by_query, by_key = tile_sizes()
    lists, lists_by_key = (
        make_lists(by_layer, tuple(known), order, sizes, heads // key_heads) for sizes in (by_query, by_key)
    )
    if listings is not None:
        operands = list_operands(operands, QueryKeyPair(*listings))
    tokens = make_tokens(operands, any(pattern.uses_positions for pattern in patterns))
    options = KernelOptions(
        by_layer[0][0],
        lists.block,
        tokens.segments_bL is not None or not all(one.is_whole_NPE.all() for one in (lists, lists_by_key)),
        call.dropout_rate,
        1.0 / math.sqrt(width),
        by_query,
        by_key,
        device_tuning().mosaic_stages,
        (count_visits(lists, heads), count_visits(lists_by_key, key_heads)),
        call.is_interpreted,
    )
    of_rows = None if operands.segments is None else QueryKeyPair(tokens.segments_bL, tokens.segments_bM)
    q, k, v = (pad_vectors(x) for x in operands[:3])
    chosen = [
        choose_lists(one, operands.layer, of_rows, sizes) for one, sizes in ((lists, by_query), (lists_by_key, by_key))
    ]
    out, lse = attend_lists(options, q, k, v, tokens, *chosen)
    out, lse = out[:, :length, :, :width], lse[:, :, :length]
    if listings is None:
        return out, lse
    back = np.argsort(listings[0])
    return reorder(out, back, 1), reorder(lse, back, 2)


def list_operands(operands: Operands, order: QueryKeyPair) -> Operands:
    """Returns the operands with their queries and keys in the listed order."""
    segments, positions = (
        None if pair is None else QueryKeyPair(*(reorder(x, by, 1) for x, by in zip(pair, order, strict=True)))
        for pair in (operands.segments, operands.positions)
    )
    assert positions is not None
    return operands._replace(
        q_BLHK=reorder(operands.q_BLHK, order.query, 1),
        k_BMGK=reorder(operands.k_BMGK, order.key, 1),
        v_BMGK=reorder(operands.v_BMGK, order.key, 1),
        segments=segments,
        positions=positions,
        numbers=QueryKeyPair(*(reorder(x, by, 0) for x, by in zip(operands.numbers, order, strict=True))),
    )


def make_tokens(operands: Operands, uses_positions: bool) -> Tokens:
    """Returns the numbers of queries and keys that the kernels read, padded to whole tiles."""
    (length, keys), (queries_L, keys_M) = (x.shape[1] for x in operands[:2]), operands.numbers
    segments = operands.segments
    if segments is not None:
        segments = QueryKeyPair(jnp.where(segments.query == 0, -1, segments.query), segments.key)
    elif keys % COMPUTED:
        segments = QueryKeyPair(jnp.ones((1, length), jnp.int32), jnp.ones((1, keys), jnp.int32))
    positions = operands.positions if uses_positions else (None, None)
    bits: tuple[Any, Any] = (None, None)
    if operands.seeds_BH is not None:
        bits = hash_in_indices(operands.seeds_BH, queries_L), spread_index(keys_M)[None]
    of_segments = (None, None) if segments is None else segments
    padded = [
        None if x is None else pad_to_tiles(x, x.ndim - 1, fill)
        for pair, fills in ((positions, (0, 0)), (of_segments, (-1, 0)), (bits, (0, 0)))
        for x, fill in zip(pair, fills, strict=True)
    ]
    return Tokens(*padded)


def check_supported(request: Request) -> None:
    """Raises a NotImplementedError that names what the request needs and the kernels or this machine lack."""
    heads = request.query.shape[2]
    lacks = lacks_of_kernels(request) | {
        'patterns that differ by head where a mesh shards heads': is_axis_sharded('H')
        and len({request_pattern(request).for_head(head, heads) for head in range(heads)}) > 1
    }
    raise_unsupported('mosaic', lacks)
