"""Attention whose cost falls with the mechanism, in plain XLA: any device, any length, memory linear in L.

Softmax visits kept tiles alone: a pattern becomes a schedule on the host (`schedule.py`), loops over its tiles run on
the device (`tile_softmax.py`), and results of heads and of disjoint parts of the pattern are put together here. LSH and
FAVOR+ are in files of their own.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.favor import serve as favor
from efficient_attention.attention.lsh import serve as lsh
from efficient_attention.attention.mechanism import FAVOR, LSH, Softmax
from efficient_attention.attention.merge import merge
from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.request import Positions, Request
from efficient_attention.attention.softmax.dense import MASKED, softmax_pattern
from efficient_attention.attention.softmax.schedule import schedule
from efficient_attention.attention.softmax.tile_picks import TILE, reorder
from efficient_attention.attention.softmax.tile_softmax import attend_pass


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """The blocked backend: every mechanism that is known; raises NotImplementedError naming what one lacks."""
    server = SERVERS.get(type(request.mechanism))
    if server is None:
        raise NotImplementedError(f'blocked does not know {type(request.mechanism).__name__}')
    return server(request)


def serve_softmax(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """`Softmax` with any pattern and every option of a request."""
    heads, keys = request.query.shape[2], request.key.shape[1]
    pattern = softmax_pattern(request.mechanism).for_keys(keys)
    results = {}
    for group, patterns in head_groups(pattern, heads):
        results[group] = attend_heads(request, group, patterns)
    if len(results) == 1:
        return next(iter(results.values()))
    order = np.argsort(np.concatenate([np.asarray(group) for group in results]))
    out_BLHK = jnp.concatenate([out for out, _ in results.values()], axis=2)
    lse_BHL = jnp.concatenate([lse for _, lse in results.values()], axis=1)
    return reorder(out_BLHK, order, 2), reorder(lse_BHL, order, 1)


def head_groups(pattern: Pattern, heads: int) -> list[tuple[tuple[int, ...], tuple[Pattern, ...]]]:
    """Heads that share one schedule: (their numbers, one pattern for all or one for each).

    Patterns of one group differ at most in what they draw for each head, so their tables have nearly the same shape.
    """
    groups: dict[Pattern, dict[int, Pattern]] = {}
    for head in range(heads):
        own = pattern.for_head(head, heads)
        groups.setdefault(own.for_head(0, 1), {})[head] = own
    return [
        (tuple(own), tuple(own.values())[:1] if len(set(own.values())) == 1 else tuple(own.values()))
        for own in groups.values()
    ]


def attend_heads(request: Request, group: tuple[int, ...], patterns: tuple[Pattern, ...]) -> tuple[Array, Array]:
    """Output [B, L, group, K] and log-sum-exp [B, group, L] of some heads."""
    heads = request.query.shape[2]
    query, key, value = request.query, request.key, request.value
    if len(group) < heads or len(patterns) > 1:
        query, key, value = (pick_heads(x, group, heads) for x in (query, key, value))
    part = dataclasses.replace(request, query=query, key=key, value=value)
    is_static = not any(pattern.compares_positions for pattern in patterns)
    query_positions, key_positions = (
        static_positions(positions, is_static) for positions in (request.query_positions, request.key_positions)
    )
    passes = schedule(patterns, query_positions, key_positions, TILE)
    if not passes:
        zeros = jnp.zeros_like(query)
        return zeros, jnp.full(zeros.shape[:3], MASKED, jnp.float32).swapaxes(1, 2)
    return merge([attend_pass(part, np.asarray(group), own) for own in passes])


def pick_heads(x: Array, group: tuple[int, ...], heads: int) -> Array:
    """Of `x` [B, L, H or G, K] the given ones of `heads` query heads, or the key heads that serve them."""
    x = jnp.repeat(x, heads // x.shape[2], axis=2)
    if len(group) == heads:
        return x
    # Unique numbers: the gradient has nothing to add up in an order that could change.
    return x.at[:, :, np.asarray(group)].get(mode='promise_in_bounds', unique_indices=True, indices_are_sorted=True)


def static_positions(positions: Positions, is_irrelevant: bool) -> bytes | int:
    """Positions of all rows as bytes where they are known now, or their number."""
    if is_irrelevant:
        return np.arange(positions.shape[1], dtype=np.int32).tobytes()
    if isinstance(positions, np.ndarray) and positions.shape[0] == 1:
        return positions[0].astype(np.int32).tobytes()
    return positions.shape[1]


SERVERS: dict[type, Callable[[Request], tuple[Array, Array | None]]] = {
    Softmax: serve_softmax,
    LSH: lsh.serve,
    FAVOR: favor.serve,
}
