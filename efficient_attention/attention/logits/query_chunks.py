"""Computes attention over a pattern from dense scores; if the scores
of all pairs need too much memory, a few queries at a time.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.implementation import Result
from efficient_attention.attention.logits.definition import Weigh, attend_dense, dense_weights
from efficient_attention.attention.request import QueryKeyPair, Request, ShardPlacement


def compute_attention(request: Request, weigh: Weigh = dense_weights) -> Result:
    """Returns the attention output with the weights that `weigh` computes, and the log-sum-exp or None;
    supports every option of a request.
    """
    return map_query_chunks(request, functools.partial(attend_dense, weigh=weigh))


# Bytes of float32 scores in memory at once; for 32 rows of 8 heads and 1,024 keys this allows 64 queries per chunk.
PART_BYTES = 64 * 2**20


def map_query_chunks(request: Request, compute: Callable[[Request], Result]) -> Result:
    """Returns `compute(request)`, computed for a few queries at a time if the scores
    of all queries need too much memory.
    """
    queries, size = request.query.shape[1], query_chunk_size(request)
    if size >= queries:
        return compute(request)
    parts = -(-queries // size)
    size = -(-queries // parts)
    arrays = {name: split_into_chunks(x, axis, parts, size) for name, (x, axis) in query_arrays(request).items()}

    def compute_part(start: Any, part: dict[str, Array]) -> Result:
        return compute(query_chunk_request(request, start, part))

    again = jax.checkpoint(compute_part, prevent_cse=False)
    out, lse = jax.lax.map(lambda one: again(*one), (jnp.arange(parts) * size, arrays))
    return merge_chunks(out, 1, queries), None if lse is None else merge_chunks(lse, 2, queries)


def query_chunk_size(request: Request) -> int:
    """Returns the largest number of queries whose scores together need at most `PART_BYTES` bytes; at least 1. Additive
    scores need K times as many bytes, for heads of width K.
    """
    batch, _, heads, width = request.query.shape
    numbers = batch * heads * request.key.shape[1] * (1 if request.additive is None else width)
    return max(1, PART_BYTES // (4 * numbers))


def query_arrays(request: Request) -> dict[str, tuple[Any, int]]:
    """Returns by name the arrays of an attention request that have a query axis, each with the index of this axis."""
    found: dict[str, tuple[Any, int]] = {'query': (request.query, 1), 'positions': (request.positions.query, 1)}
    if request.segments is not None:
        found['segments'] = request.segments.query, 1
    if request.relative is not None:
        found['relative'] = request.relative.query, 1
    if request.centres is not None:
        found['centres'] = request.centres, 1
    if request.bias is not None and not callable(request.bias) and request.bias.shape[2] > 1:
        found['bias'] = request.bias, 2
    return found


def split_into_chunks(x: Any, axis: int, parts: int, size: int) -> Shaped[Array, '...']:
    """Returns an array cut into `parts` chunks of `size` entries along an axis;
    copies of its last entry fill the last chunk.
    """
    x = jnp.asarray(x)
    missing = parts * size - x.shape[axis]
    x = jnp.pad(x, [(0, missing if number == axis else 0) for number in range(x.ndim)], mode='edge')
    return jnp.moveaxis(x.reshape(*x.shape[:axis], parts, size, *x.shape[axis + 1 :]), axis, 0)


def merge_chunks(parts: Shaped[Array, '...'], axis: int, queries: int) -> Shaped[Array, '...']:
    """Returns chunks [parts, ...] joined along an axis, without the entries that only fill the last chunk."""
    x = jax.lax.collapse(jnp.moveaxis(parts, 0, axis), axis, axis + 2)
    return jax.lax.slice_in_dim(x, 0, queries, axis=axis)


def query_chunk_request(request: Request, start: Any, part: dict[str, Array]) -> Request:
    """Returns the attention request of one chunk of queries, which begins at query `start`; `part` holds the arrays of
    these queries.
    """
    place = request.place or ShardPlacement(
        request.full_row_key_count, QueryKeyPair(np.int32(0), np.int32(0)), QueryKeyPair(np.int32(0), np.int32(0))
    )
    changes: dict[str, Any] = {name: part[name] for name in ('query', 'bias', 'centres') if name in part}
    for name in ('segments', 'positions'):
        if name in part:
            changes[name] = getattr(request, name)._replace(query=part[name])
    if request.relative is not None:
        changes['relative'] = dataclasses.replace(request.relative, query=part['relative'])
    place = place._replace(first=place.first._replace(query=place.first.query + start))
    return dataclasses.replace(request, place=place, **changes)
