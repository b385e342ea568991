"""Dense masked softmax attention: the formulas of the reference, and with products in the input's own dtype.

Statistics are float32 whatever the input. All scores [B, H, L, M] exist at once, so this is for short rows; the
backend `dense` takes it or, on a CPU, the loop of dense_loop.py.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dropout import keep_mask
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import Mechanism, Softmax
from efficient_attention.attention.patterns.pattern import Pattern, head_patterns
from efficient_attention.attention.relative import relative_logits
from efficient_attention.attention.request import Request

# A finite stand-in for minus infinity: exp(MASKED - maximum) is 0 and no subtraction of two of them gives NaN.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def softmax_pattern(mechanism: Mechanism) -> Pattern:
    """The pattern of a `Softmax`; raises NotImplementedError for any other mechanism."""
    if not isinstance(mechanism, Softmax):
        raise NotImplementedError(f'dense attention computes Softmax, not {type(mechanism).__name__}')
    return mechanism.pattern


def allowed_pairs(request: Request) -> Bool[Array, 'b h L M']:
    """Which query may read which key, from pattern, positions and segments; b and h are 1 where nothing differs."""
    heads, keys = request.query.shape[2], request.key.shape[1]
    query_bL1 = jnp.asarray(request.query_positions)[:, :, None]
    key_b1M = jnp.asarray(request.key_positions)[:, None, :]
    patterns = head_patterns(softmax_pattern(request.mechanism).for_keys(keys), heads)
    allowed = jnp.stack([pattern(query_bL1, key_b1M) for pattern in patterns], axis=1)
    return allowed & same_segment(request)


def same_segment(request: Request) -> Bool[Array, 'b 1 #L #M']:
    """Which query shares a segment other than padding with which key; all do where no segments are given."""
    if request.query_segments is None or request.key_segments is None:
        return jnp.ones((1, 1, 1, 1), bool)
    query_B1L1, key_B11M = request.query_segments[:, None, :, None], request.key_segments[:, None, None, :]
    return (query_B1L1 == key_B11M) & (key_B11M != 0)


def scaled_logits(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Float[Array, 'B H L M']:
    """q k^T / sqrt(K) + relative term + bias in float32, from products of operands in `dtype`.

    A key head serves H / G query heads.
    """
    q_BLHK, k_BMGK = request.query, request.key
    batch, queries, heads, width = q_BLHK.shape
    groups = k_BMGK.shape[2]
    q_BLGhK = (q_BLHK.astype(dtype) * (1.0 / math.sqrt(width))).reshape(batch, queries, groups, heads // groups, width)
    k_BMGK = k_BMGK.astype(dtype)
    logits = float32_einsum('BLGhK,BMGK->BGhLM', q_BLGhK, k_BMGK, precision)
    logits_BHLM = logits.reshape(batch, heads, queries, k_BMGK.shape[1])
    terms = logit_terms(request, dtype, precision)
    return logits_BHLM if terms is None else logits_BHLM + terms


def logit_terms(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Array | None:
    """The relative term and the bias, float32 [1 or B, 1 or H, 1 or L, 1 or M]; None where there is neither."""
    terms = dense_bias(request)
    if request.relative is None:
        return terms
    positions = request.query_positions, request.key_positions
    relative_BHLM = relative_logits(request.relative.astype(dtype), *positions, precision)
    return relative_BHLM if terms is None else relative_BHLM + terms


def dense_bias(request: Request) -> Array | None:
    """The bias as a float32 array [1 or B, 1 or H, ...] like [B, H, L, M]; a function is evaluated on all positions."""
    bias = request.bias
    if bias is None:
        return None
    if callable(bias):
        query_b1L1 = jnp.asarray(request.query_positions)[:, None, :, None]
        bias = bias(query_b1L1, jnp.asarray(request.key_positions)[:, None, None, :])
    return bias.astype(jnp.float32).reshape((1,) * (4 - bias.ndim) + bias.shape)


def masked_softmax(logits_BHLM: Array, allowed: Array) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L']]:
    """Weights and log-sum-exp over the allowed keys; a query without keys gets weights 0 and log-sum-exp MASKED."""
    logits_BHLM = jnp.where(allowed, logits_BHLM, MASKED)
    maximum = jax.lax.stop_gradient(logits_BHLM.max(axis=-1, keepdims=True))
    exponentials = jnp.where(allowed, jnp.exp(logits_BHLM - maximum), 0.0)
    total = exponentials.sum(axis=-1, keepdims=True)
    has_key = total > 0.0
    safe_total = jnp.where(has_key, total, 1.0)
    lse = jnp.where(has_key, jnp.log(safe_total) + maximum, MASKED)
    return exponentials / safe_total, lse[..., 0]


def drop_weights(weights_BHLM: Array, request: Request) -> Array:
    """Weights after attention dropout; an element's bits depend on the key, its row, head, query and key number."""
    rng = request.dropout_rng
    if rng is None or request.dropout_rate == 0.0:
        return weights_BHLM
    batch, heads, queries, keys = weights_BHLM.shape
    keep = keep_mask(rng, request.dropout_rate, batch, jnp.arange(heads), jnp.arange(queries), jnp.arange(keys))
    return jnp.where(keep, weights_BHLM / (1.0 - request.dropout_rate), 0.0)


def combine_values(
    weights_BHLM: Array, value_BMGK: Array, dtype: jnp.dtype, precision: jax.lax.Precision | None
) -> Float[Array, 'B L H K']:
    """The weighted sums of values in float32, from products of operands in `dtype`."""
    batch, heads, queries, keys = weights_BHLM.shape
    groups, width = value_BMGK.shape[2:]
    weights = weights_BHLM.astype(dtype).reshape(batch, groups, heads // groups, queries, keys)
    value_BMGK = value_BMGK.astype(dtype)
    out = float32_einsum('BGhLM,BMGK->BLGhK', weights, value_BMGK, precision)
    return out.reshape(batch, queries, heads, width)


def attend_dense(
    request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None = None
) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Output in the query's dtype and float32 log-sum-exp, with matrix products on operands of `dtype`."""
    weights_BHLM, lse_BHL = masked_softmax(scaled_logits(request, dtype, precision), allowed_pairs(request))
    out = combine_values(drop_weights(weights_BHLM, request), request.value, dtype, precision)
    return out.astype(request.query.dtype), lse_BHL


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """`Softmax` with any pattern, segments, bias, dropout and grouped heads, all rows at once."""
    return attend_dense(request, request.query.dtype)
