"""Computes the backend `dense` in a loop over batch rows and heads, so that a step's scores fit in a CPU's caches.

The scores of a whole batch do not fit in these caches, and every operation on them then waits for memory. In the loop,
the mask and the terms of the logits are combined into one array per row. This is cheaper than comparing positions again
in each operation. An inner loop computes a few heads at a time. The backward pass recomputes a step's weights, so no
scores outlive their step.

Axes: G key heads, g of them in a step, h query heads of a key head, L queries, M keys, K head width. Before the heads
are split into steps, axis h of masks and terms has all query heads, or 1 entry for all.
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
from jaxtyping import Float, Shaped

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.devices import cpu_core_count, device_tuning
from efficient_attention.attention.dropout import hash_in_indices, is_kept, row_seeds
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.logits.definition import allowed_pairs, logit_terms
from efficient_attention.attention.request import QueryKeyPair, Request


class HeadOperands(NamedTuple):
    """The queries, keys, values and logit terms of a few key heads of one batch row."""

    query_ghLK: Array  # queries, scaled by 1 / sqrt(K)
    key_gMK: Array
    value_gMK: Array
    terms_ghLM: Array | None  # None if all heads share the logit terms
    seeds_gh: Array | None  # uint32 seeds of dropout


def attend_by_rows(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Returns the attention output in the query's dtype and the float32 log-sum-exp,
    computed one batch row after another in float32.
    """
    batch = len(request.query)
    rows = {name: getattr(request, name).astype(jnp.float32) for name in ('query', 'key', 'value')}
    for name, sides in (('segments', request.segments), ('positions', request.positions)):
        for side, x in (sides or QueryKeyPair(None, None))._asdict().items():
            if x is not None and np.shape(x)[0] == batch > 1:
                rows[f'{side}_{name}'] = jnp.asarray(x)
    if request.bias is not None and not callable(request.bias) and np.shape(request.bias)[0] == batch > 1:
        rows['bias'] = jnp.asarray(request.bias)
    if request.relative is not None:
        rows['relative'] = request.relative.query
    if request.dropout is not None:
        rows['seed'] = row_seeds(request.dropout.rng, batch)
    out_BLHK, lse_BHL = map_with_recompute(functools.partial(attend_row, request), rows)
    return out_BLHK.astype(request.query.dtype), lse_BHL


def attend_row(request: Request, row: dict[str, Array]) -> tuple[Float[Array, 'L H K'], Float[Array, 'H L']]:
    """Returns the float32 attention output and log-sum-exp of one batch row."""
    request = request_of_row(request, {name: x[None] for name, x in row.items()})
    _, queries, heads, width = request.query.shape
    keys, groups = request.key.shape[1:3]
    allowed_hLM = allowed_pairs(request)[0]
    added_bhlm = logit_terms(request, jnp.dtype(jnp.float32), None)
    terms_hLM = jnp.where(allowed_hLM, 0.0 if added_bhlm is None else added_bhlm[0], MASKED)
    most = max(1, device_tuning().dense_step_bytes * cpu_core_count() * groups // (4 * heads * queries * keys))
    step = max(number for number in range(1, groups + 1) if groups % number == 0 and number <= most)

    def by_step(x: Shaped[Array, '...'], *shape: int) -> Array:
        return x.reshape(groups // step, step, *shape)

    of_group = heads // groups
    query_LHK = row['query'] * (1.0 / math.sqrt(width))
    steps = HeadOperands(
        by_step(query_LHK.swapaxes(0, 1), of_group, queries, width),
        by_step(row['key'].swapaxes(0, 1), keys, width),
        by_step(row['value'].swapaxes(0, 1), keys, width),
        terms_ghLM=by_step(terms_hLM, of_group, queries, keys) if len(terms_hLM) > 1 else None,
        seeds_gh=by_step(hash_in_indices(row['seed'], jnp.arange(heads)), of_group) if 'seed' in row else None,
    )
    out, lse = map_with_recompute(
        functools.partial(attend_heads, terms_hLM[None], request.dropout.rate if request.dropout else 0.0), steps
    )
    return out.reshape(heads, queries, width).swapaxes(0, 1), lse.reshape(heads, queries)


def request_of_row(request: Request, row: dict[str, Array]) -> Request:
    """Returns the attention request for one batch row, whose arrays are [1, ...];
    arrays that all rows share stay unchanged.
    """
    changes: dict[str, Any] = {name: row[name] for name in ('query', 'key', 'value', 'bias') if name in row}
    for name, sides in (('segments', request.segments), ('positions', request.positions)):
        if sides is not None:
            changes[name] = QueryKeyPair(*(row.get(f'{side}_{name}', x) for side, x in sides._asdict().items()))
    if request.relative is not None:
        changes['relative'] = dataclasses.replace(request.relative, query=row['relative']).astype(jnp.float32)
    return dataclasses.replace(request, **changes)


def attend_heads(
    terms_11LM: Array, dropout_rate: float, operands: HeadOperands
) -> tuple[Float[Array, 'g h L K'], Float[Array, 'g h L']]:
    """Returns the attention output and log-sum-exp of a few heads of one batch row;
    `terms_11LM` are the logit terms if all heads share them.
    """
    terms_ghLM = terms_11LM if operands.terms_ghLM is None else operands.terms_ghLM
    logits_ghLM = float32_einsum('ghLK,gMK->ghLM', operands.query_ghLK, operands.key_gMK) + terms_ghLM
    maximum_ghL1 = jax.lax.stop_gradient(logits_ghLM.max(axis=-1, keepdims=True))
    # If a query has no allowed key, its weights are not zero; `has_key` sets its results to zero below.
    has_key = maximum_ghL1 > MASKED / 2
    weights_ghLM = jnp.exp(logits_ghLM - maximum_ghL1)
    total = weights_ghLM.sum(axis=-1, keepdims=True)
    lse = jnp.where(has_key, jnp.log(total) + maximum_ghL1, MASKED)
    if operands.seeds_gh is not None:
        queries, keys = weights_ghLM.shape[-2:]
        keep = is_kept(hash_in_indices(operands.seeds_gh, jnp.arange(queries), jnp.arange(keys)), dropout_rate)
        weights_ghLM, total = jnp.where(keep, weights_ghLM, 0.0), total * (1.0 - dropout_rate)
    out = float32_einsum('ghLM,gMK->ghLK', weights_ghLM, operands.value_gMK) / total
    return jnp.where(has_key, out, 0.0), lse[..., 0]


def map_with_recompute(compute: Callable[[Any], Any], arrays: Any) -> Any:
    """Returns the results of `compute` over the leading axis of the arrays;
    the backward pass computes each result again.
    """
    return jax.lax.map(jax.checkpoint(compute, prevent_cse=False), arrays)
