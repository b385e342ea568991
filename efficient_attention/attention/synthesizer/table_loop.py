"""Computes softmax of a learned table of logits, optionally plus q k, for long rows on a CPU:
a few queries of one head at a time.

Tiles of all heads would need a reordered copy of the table, and of its gradient. Instead each step reads its part of
the table in place, and writes its part of the gradient, which no other step writes.

Axes: n steps of S queries, M keys, K head width.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.devices import device_count, device_tuning
from efficient_attention.attention.implementation import Result
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.patterns import Full
from efficient_attention.attention.request import Request
from efficient_attention.attention.synthesizer.definition import Synthesizer
from efficient_attention.attention.synthesizer.group_step_map import map_group_steps

STEP = 128  # number of queries per loop step
FEWEST_PAIRS = 512 * 512  # up to this many query-key pairs, softmax attention computes all pairs at once


def is_supported(request: Request) -> bool:
    """Returns whether this loop can compute the request: long rows on one CPU device,
    with a table of logits for all query-key pairs.
    """
    mechanism = ensure_kind(Synthesizer, request.mechanism)
    if device_tuning().dense_step_bytes == 0 or device_count() > 1 or request.backend != 'auto':
        return False
    is_alone = request.bias is None and request.relative is None and request.dropout is None
    is_long = request.query.shape[1] * request.key.shape[1] > FEWEST_PAIRS
    has_table = mechanism.reads_table_as_logits and mechanism.pattern == Full()
    return is_long and is_alone and has_table and request.has_default_positions


def compute_attention(
    request: Request, key_BMHK: Float[Array, 'B M H K'], value_BMHK: Float[Array, 'B M H K']
) -> Result:
    """Returns the output in the query's dtype and the float32 log-sum-exp
    of attention whose logits come from a learned table.
    """
    batch, queries, heads, width = request.query.shape
    keys = value_BMHK.shape[1]
    has_products = ensure_kind(Synthesizer, request.mechanism).key_access.keys
    steps = -(-queries // STEP)
    table_HLM = request.learned_operand('table')[:, :queries, :keys]
    table_HLM = jnp.pad(table_HLM, ((0, 0), (0, steps * STEP - queries), (0, 0)))
    fixed = {}
    if request.segments is not None:
        query_bL, fixed['of_keys_bM'] = map(jnp.asarray, request.segments)
        padded_bL = jnp.pad(query_bL, ((0, 0), (0, steps * STEP - queries)))
        fixed['of_queries_nbS'] = jnp.moveaxis(padded_bL.reshape(-1, steps, STEP), 1, 0)
    of_heads = {'value': jnp.moveaxis(value_BMHK.astype(jnp.float32), 2, 0)}
    of_steps = {'table': table_HLM.reshape(heads, steps, STEP, keys)}
    if has_products:
        query_BLHK = request.query.astype(jnp.float32) / math.sqrt(width)
        query_BLHK = jnp.pad(query_BLHK, ((0, 0), (0, steps * STEP - queries), (0, 0), (0, 0)))
        of_steps['query'] = jnp.transpose(query_BLHK.reshape(batch, steps, STEP, heads, width), (3, 1, 0, 2, 4))
        of_heads['key'] = jnp.moveaxis(key_BMHK.astype(jnp.float32), 2, 0)
    out_NBSK, lse_NbS = map_group_steps(attend_step, fixed, of_heads, of_steps)
    out_HnBSK = out_NBSK.reshape(heads, steps, *out_NBSK.shape[1:])
    lse_HnbS = lse_NbS.reshape(heads, steps, *lse_NbS.shape[1:])
    out_BLHK = jnp.transpose(out_HnBSK, (2, 1, 3, 0, 4)).reshape(batch, steps * STEP, heads, -1)
    lse_bHL = jnp.transpose(lse_HnbS, (2, 0, 1, 3)).reshape(-1, heads, steps * STEP)
    lse_BHL = jnp.broadcast_to(lse_bHL, (batch, heads, steps * STEP))
    return out_BLHK[:, :queries].astype(request.query.dtype), lse_BHL[..., :queries]


def attend_step(
    fixed: dict[str, Array], head: dict[str, Array], step: dict[str, Array], number: Int[Array, '']
) -> tuple[Array, Array]:
    """Returns the attention output [B, S, K] and log-sum-exp [b, S] of the S queries of one loop step in one head."""
    logits_bSM = step['table'][None]
    if 'key' in head:
        logits_bSM += jnp.einsum('BSK,BMK->BSM', step['query'], head['key'])
    if fixed:
        of_keys_b1M = fixed['of_keys_bM'][:, None]
        is_same_bSM = fixed['of_queries_nbS'][number][:, :, None] == of_keys_b1M
        logits_bSM = jnp.where(is_same_bSM & (of_keys_b1M != 0), logits_bSM, MASKED)
    maximum_bS1 = jax.lax.stop_gradient(logits_bSM.max(axis=-1, keepdims=True))
    weights_bSM = jnp.exp(logits_bSM - maximum_bS1)
    total_bS1 = weights_bSM.sum(axis=-1, keepdims=True)
    has_key_bS1 = maximum_bS1 > MASKED / 2
    if len(weights_bSM) == 1:
        out_BSK = jnp.einsum('SM,BMK->BSK', weights_bSM[0], head['value']) / total_bS1
    else:
        out_BSK = jnp.einsum('BSM,BMK->BSK', weights_bSM, head['value']) / total_bS1
    lse_bS1 = jnp.where(has_key_bS1, jnp.log(total_bS1) + maximum_bS1, MASKED)
    return jnp.where(has_key_bS1, out_BSK, 0.0), lse_bS1[..., 0]
