"""Sequence parallel softmax attention: each device computes blocks of tiles for its queries,
while keys travel around the devices.

Devices whose blocks keep the same tiles share a program. Masks and dropout use the position of each device's block in
the whole rows, so results equal the results of one device up to the order of sums.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.mechanism import ensure_kind, unsupported_error
from efficient_attention.attention.partial_softmax import Partial
from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import order_by_residue, split_into_disjoint_patterns, tile_table
from efficient_attention.attention.request import QueryKeyPair, Request, ShardPlacement
from efficient_attention.attention.sequence_parallel.ring import RingExchange, attend_ring, merge_results_of_devices
from efficient_attention.attention.sequence_parallel.ring_steps import Block, RingStep, make_local_step, make_ring_steps
from efficient_attention.attention.sequence_parallel.sequence_split import AXIS, SequenceSplit
from efficient_attention.attention.softmax.backend_choice import compute_attention
from efficient_attention.attention.softmax.definition import Softmax


def compute_attention_shard(request: Request, split: SequenceSplit) -> Partial:
    """Returns the output in the query's dtype and the log-sum-exp of this device's queries over the keys of all
    devices.
    """
    mechanism = ensure_kind(Softmax, request.mechanism)
    patterns = tuple(head_patterns(mechanism.pattern.for_key_count(split.keys), request.query.shape[2] * split.heads))
    if len(patterns) > 1 and split.heads > 1:
        raise unsupported_error(
            'a sequence axis', 'support for patterns that differ by head together with a tensor axis'
        )
    starts = QueryKeyPair(*(int(positions[0, 0]) for positions in request.positions))
    steps = plan_ring_steps(patterns, starts, split, mechanism.tile, request.relative is not None)
    if not steps:
        return empty_attention_result(request)
    leaves, structure = jax.tree.flatten((request.bias, request.relative))
    added, whole_numbers = split_float_leaves(leaves)
    segments, key_segments = request.segments or (None, None)
    attend = functools.partial(attend_block, RingConstants(request, split, starts, structure))
    fixed = segments, request.dropout.rng if request.dropout else None, whole_numbers
    part = attend_ring(
        RingExchange(AXIS, steps, attend), (request.query, added), (request.key, request.value), key_segments, fixed
    )
    if split.has_key_shares and not split.has_query_shares:
        part = merge_results_of_devices(AXIS, part)
    return part[0].astype(request.query.dtype), part[1]


class RingConstants(NamedTuple):
    """The static values that all blocks of a sequence parallel call share. Blocks read only the static fields of
    `request`, not its arrays.
    """

    request: Request
    split: SequenceSplit
    starts: QueryKeyPair  # positions of the first query and the first key in the whole rows
    terms: Any  # the tree structure of the pair (bias, relative term)


def attend_block(whole: RingConstants, block: Block, standing: Any, keys: Any, labels: Any, fixed: Any) -> Partial:
    """Returns softmax attention of this device's queries over one block of received keys.

    `block` decides which tiles are computed.
    """
    request, split = whole.request, whole.split
    (query_BLHK, added), (key_BMGK, value_BMGK) = standing, keys
    segments_BL, rng, whole_numbers = fixed
    bias, relative = jax.tree.unflatten(whole.terms, merge_float_leaves(added, whole_numbers))
    place, positions = place_device_block(split, whole.starts, block)
    place = place._replace(first_head=split.head_device_index() * query_BLHK.shape[2])
    if bias is not None and not callable(bias) and bias.shape[3] > 1:
        bias = jax.lax.dynamic_slice_in_dim(bias, place.first.key, split.keys_per_device, axis=3)
    request = dataclasses.replace(
        request,
        query=query_BLHK,
        key=key_BMGK,
        value=value_BMGK,
        bias=bias,
        relative=relative,
        segments=None if segments_BL is None else QueryKeyPair(segments_BL, labels),
        positions=positions,
        dropout=request.dropout and request.dropout._replace(rng=rng),
        return_lse=True,
        place=place,
    )
    out_BLHK, lse_BHL = compute_attention(request)
    assert lse_BHL is not None  # the log-sum-exp exists, because `return_lse` is True
    return out_BLHK, lse_BHL


def place_device_block(split: SequenceSplit, starts: QueryKeyPair, block: Block) -> tuple[ShardPlacement, QueryKeyPair]:
    """Returns where this device's block of queries and keys begins in the whole rows, and the positions for which the
    block's program is compiled.
    """
    device = split.device()
    query = device if split.has_query_shares else jnp.int32(0)
    key = device if split.has_key_shares else jnp.int32(0)
    if split.has_query_shares and split.has_key_shares:
        key = (device - (block[0] - block[1])) % split.count
    shares = QueryKeyPair(split.queries_per_device, split.keys_per_device)
    first = QueryKeyPair(query * shares.query, key * shares.key)
    begins = QueryKeyPair(block[0] * shares.query, block[1] * shares.key)
    shift = QueryKeyPair(first.query - begins.query, first.key - begins.key)
    positions = QueryKeyPair(
        *(
            start + begin + np.arange(share, dtype=np.int32)[None]
            for start, begin, share in zip(starts, begins, shares, strict=True)
        )
    )
    return ShardPlacement(split.keys, first, shift), positions


def plan_ring_steps(
    patterns: tuple[Pattern, ...], starts: QueryKeyPair, split: SequenceSplit, tile: int, by_distance: bool
) -> tuple[RingStep, ...]:
    """Returns the ring steps in which the devices compute all blocks that contain an allowed query-key pair.

    Args:
        patterns: one pattern, or one for each head; the number of keys is set.
        starts: positions of the first query and of the first key.
        split: how queries and keys are sharded.
        tile: S, the number of positions of a tile.
        by_distance: whether a term depends on the distance between a block's queries and keys; blocks at different
            distances then need different programs.
    """

    def kind(query: int, key: int) -> Hashable | None:
        begins = starts.query + query * split.queries_per_device, starts.key + key * split.keys_per_device
        tables = tuple(
            digest_kept_tiles(one, *begins, split.queries_per_device, split.keys_per_device, tile) for one in patterns
        )
        if not any(has_tile for has_tile, _ in tables):
            return None
        return tables, begins[0] - begins[1] if by_distance else 0

    if split.has_query_shares and split.has_key_shares:
        return make_ring_steps(split.count, kind)
    devices = range(split.count)
    step = make_local_step({i: (i * split.has_query_shares, i * split.has_key_shares) for i in devices}, kind)
    return (step,) if step.blocks else ()


@functools.lru_cache(maxsize=4096)
def digest_kept_tiles(
    pattern: Pattern, query_start: int, key_start: int, queries: int, keys: int, tile: int
) -> tuple[bool, bytes]:
    """Returns whether a pattern keeps any tile of a block of consecutive positions, and a hash of all kept tiles."""
    query_L, key_M = query_start + np.arange(queries), key_start + np.arange(keys)
    has_tile, digest = False, hashlib.sha256()
    for part, order in split_into_disjoint_patterns(pattern):
        listings = order_by_residue(query_L, order), order_by_residue(key_M, order)
        table = tile_table(part, query_L[listings[0]], key_M[listings[1]], tile, order)
        has_tile = has_tile or len(table.keys) > 0
        for array in (*listings, table.offsets, table.keys, table.is_whole):
            digest.update(np.ascontiguousarray(array).tobytes())
    return has_tile, digest.digest()


def empty_attention_result(request: Request) -> Partial:
    """Returns the attention result of queries without any key: zeros as output, and MASKED as log-sum-exp."""
    lse_BLH = jnp.full(request.query.shape[:3], MASKED, jnp.float32)
    return jnp.zeros_like(request.query), lse_BLH.swapaxes(1, 2)


def split_float_leaves(leaves: list[Any]) -> tuple[list[Any], list[Any]]:
    """Splits a list of tree leaves into floating-point leaves and other leaves;
    both lists keep the length, with None in the gaps.

    Only floating-point leaves have gradients.
    """
    is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    pairs = [(leaf, None) if chosen else (None, leaf) for leaf, chosen in zip(leaves, is_float, strict=True)]
    return [left for left, _ in pairs], [right for _, right in pairs]


def merge_float_leaves(floats: list[Any], others: list[Any]) -> list[Any]:
    """Returns one list of the tree leaves that `split_float_leaves` separated."""
    return [right if left is None else left for left, right in zip(floats, others, strict=True)]
