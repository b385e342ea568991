"""The logits of all pairs and who reads whom: the dense definition of mechanisms over patterns."""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.logits.additive import additive_logits
from efficient_attention.attention.logits.over_pattern import OverPattern, Weights
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.relative import relative_logits
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import same_segment

FLOAT32, HIGHEST = jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST


def pattern_of(request: Request) -> Pattern:
    """The pattern of the request's mechanism, for its number of keys."""
    return of_kind(OverPattern, request.mechanism).pattern.for_keys(request.keys_of_row)


def weights_of(request: Request, dtype: jnp.dtype = FLOAT32, precision: jax.lax.Precision | None = HIGHEST) -> Weights:
    """The dense weights and the log-sum-exp where there is one; by default from products in full float32 everywhere."""
    logits_BHLM = scaled_logits(request, dtype, precision)
    return of_kind(OverPattern, request.mechanism).distribute(logits_BHLM, allowed_pairs(request))


def allowed_pairs(request: Request) -> Bool[Array, 'b h L M']:
    """Which query may read which key, from pattern, positions and segments; b and h are 1 where nothing differs."""
    positions = request.positions_in_row
    query_bL1, key_b1M = jnp.asarray(positions.query)[:, :, None], jnp.asarray(positions.key)[:, None, :]
    patterns = head_patterns(pattern_of(request), request.query.shape[2])
    allowed_bhLM = jnp.stack([pattern(query_bL1, key_b1M) for pattern in patterns], axis=1)
    return allowed_bhLM & same_segment(request)


def scaled_logits(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Float[Array, 'B H L M']:
    """q k^T / sqrt(K), or additive scores, + relative term + bias in float32, from products of operands in `dtype`."""
    if request.additive is None:
        logits_BHLM = dot_logits(request.query, request.key, dtype, precision)
    else:
        logits_BHLM = additive_logits(request.query, request.key, request.additive)
    terms_bhlm = logit_terms(request, dtype, precision)
    return logits_BHLM if terms_bhlm is None else logits_BHLM + terms_bhlm


def dot_logits(
    q_BLHK: Array, k_BMGK: Array, dtype: jnp.dtype, precision: jax.lax.Precision | None
) -> Float[Array, 'B H L M']:
    """q k^T / sqrt(K) in float32, from products of operands in `dtype`; a key head serves H / G query heads."""
    batch, queries, heads, width = q_BLHK.shape
    groups = k_BMGK.shape[2]
    q_BLGhK = (q_BLHK.astype(dtype) * (1.0 / math.sqrt(width))).reshape(batch, queries, groups, heads // groups, width)
    k_BMGK = k_BMGK.astype(dtype)
    logits_BGhLM = float32_einsum('BLGhK,BMGK->BGhLM', q_BLGhK, k_BMGK, precision)
    return logits_BGhLM.reshape(batch, heads, queries, k_BMGK.shape[1])


def logit_terms(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Array | None:
    """The relative term and the bias, float32 [1 or B, 1 or H, 1 or L, 1 or M]; None where there is neither."""
    bias_bhlm = dense_bias(request)
    if request.relative is None:
        return bias_bhlm
    relative_BHLM = relative_logits(request.relative.astype(dtype), *request.positions, precision)
    return relative_BHLM if bias_bhlm is None else relative_BHLM + bias_bhlm


def dense_bias(request: Request) -> Array | None:
    """The bias as a float32 array [1 or B, 1 or H, ...] like [B, H, L, M]; a function is evaluated on all positions."""
    bias = request.bias
    if bias is None:
        return None
    if callable(bias):
        positions = request.positions_in_row
        query_b1L1 = jnp.asarray(positions.query)[:, None, :, None]
        bias = bias(query_b1L1, jnp.asarray(positions.key)[:, None, None, :])
    return bias.astype(jnp.float32).reshape((1,) * (4 - bias.ndim) + bias.shape)
