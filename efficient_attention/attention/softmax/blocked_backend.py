"""The backend `blocked`: softmax attention over only the tiles that a pattern keeps, on any device,
in memory linear in the length.

The host turns a pattern into a schedule (`tile_schedule.py`). The device runs loops over its tiles (`tile_pass.py`).
This file joins the results of heads and merges the results of passes.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.logits.definition import request_pattern
from efficient_attention.attention.mechanism import ensure_kind, raise_unsupported
from efficient_attention.attention.partial_softmax import merge_partial_softmax
from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.request import Numbers, Request
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.softmax.tile_chunks import reorder
from efficient_attention.attention.softmax.tile_pass import attend_pass
from efficient_attention.attention.softmax.tile_schedule import schedule_tiles


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Returns softmax attention's output and log-sum-exp by the backend `blocked`, for any pattern;
    additive scores are not supported.
    """
    raise_unsupported('blocked', {'additive scores': request.additive is not None})
    heads = request.query.shape[2]
    pattern = request_pattern(request)
    results = {}
    for group, patterns in head_groups(pattern, heads):
        results[group] = attend_heads(request, group, patterns)
    return join_head_groups(results)


def join_head_groups(results: dict[tuple[int, ...], tuple[Array, Array]]) -> tuple[Array, Array]:
    """Returns the output and the log-sum-exp of all heads, from the results of groups of heads by their indices."""
    if len(results) == 1:
        return next(iter(results.values()))
    order = np.argsort(np.concatenate([np.asarray(group) for group in results]))
    out_BLHK = jnp.concatenate([out for out, _ in results.values()], axis=2)
    lse_BHL = jnp.concatenate([lse for _, lse in results.values()], axis=1)
    return reorder(out_BLHK, order, 2), reorder(lse_BHL, order, 1)


def head_groups(pattern: Pattern, heads: int) -> list[tuple[tuple[int, ...], tuple[Pattern, ...]]]:
    """Groups the heads that can share a schedule of tiles; returns, for each group, its head indices and its patterns
    (one for all heads, or one per head).

    Patterns of one group differ at most in their random samples per head, so their tables have nearly the same shape.
    """
    groups: dict[Pattern, dict[int, Pattern]] = {}
    for head in range(heads):
        head_pattern = pattern.for_head(head, heads)
        groups.setdefault(head_pattern.for_head(0, 1), {})[head] = head_pattern
    return [
        (tuple(members), tuple(members.values())[:1] if len(set(members.values())) == 1 else tuple(members.values()))
        for members in groups.values()
    ]


def attend_heads(request: Request, group: tuple[int, ...], patterns: tuple[Pattern, ...]) -> tuple[Array, Array]:
    """Returns the attention output [B, L, group, K] and log-sum-exp [B, group, L] of one group of heads."""
    heads = request.query.shape[2]
    query, key, value = request.query, request.key, request.value
    if len(group) < heads or len(patterns) > 1:
        query, key, value = (pick_heads(x, group, heads) for x in (query, key, value))
    of_heads = dataclasses.replace(request, query=query, key=key, value=value)
    is_static = not any(pattern.uses_positions for pattern in patterns)
    query_positions, key_positions = (static_positions(positions, is_static) for positions in request.positions)
    passes = schedule_tiles(patterns, query_positions, key_positions, ensure_kind(Softmax, request.mechanism).tile)
    if not passes:
        zeros = jnp.zeros_like(query)
        return zeros, jnp.full(zeros.shape[:3], MASKED, jnp.float32).swapaxes(1, 2)
    return merge_partial_softmax([attend_pass(of_heads, np.asarray(group), tile_pass) for tile_pass in passes])


def pick_heads(x_BLHK: Array, group: tuple[int, ...], heads: int) -> Array:
    """Returns the given query heads of `x_BLHK`; if it holds keys or values,
    returns the key heads that these query heads share.
    """
    x_BLHK = jnp.repeat(x_BLHK, heads // x_BLHK.shape[2], axis=2)
    if len(group) == heads:
        return x_BLHK
    # The indices are unique, so the gradient contains no sums whose order could vary.
    return x_BLHK.at[:, :, np.asarray(group)].get(
        mode='promise_in_bounds', unique_indices=True, indices_are_sorted=True
    )


def static_positions(positions_bL: Numbers, is_irrelevant: bool) -> bytes | int:
    """Returns positions as int32 bytes if they are known at trace time, else only the number of positions.

    Positions must also be equal in all rows. If positions are irrelevant, the bytes are those of 0, 1, ...
    """
    if is_irrelevant:
        return np.arange(positions_bL.shape[1], dtype=np.int32).tobytes()
    if isinstance(positions_bL, np.ndarray) and positions_bL.shape[0] == 1:
        return positions_bL[0].astype(np.int32).tobytes()
    return positions_bL.shape[1]
