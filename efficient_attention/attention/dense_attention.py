"""Masks, softmax, dropout and weighted sums for dense attention weights [B, H, L, M], shared by all mechanisms."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dropout import dropout_keep_mask
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.request import Request

# A finite substitute for minus infinity: exp(MASKED - maximum) is 0, and MASKED - MASKED is not NaN.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def same_segment(request: Request) -> Bool[Array, 'b 1 #L #M']:
    """Returns whether query and key are in the same segment and not padding;
    all True if the request has no segments.
    """
    if request.segments is None:
        return jnp.ones((1, 1, 1, 1), bool)
    query_B1L1, key_B11M = request.segments.query[:, None, :, None], request.segments.key[:, None, None, :]
    return (query_B1L1 == key_B11M) & (key_B11M != 0)


def causal_mask(request: Request) -> Bool[Array, 'b 1 L M']:
    """Returns whether the key's position is at most the query's position."""
    query_bL, key_bM = (jnp.asarray(positions) for positions in request.positions)
    return key_bM[:, None, None, :] <= query_bL[:, None, :, None]


def masked_softmax(logits_BHLM: Array, allowed_bhLM: Array) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L']]:
    """Returns softmax weights and log-sum-exp over the allowed keys;
    a query without allowed keys gets weights 0 and log-sum-exp MASKED.
    """
    exponentials_BHLM, total_BHL1, maximum_BHL1 = exponentials(logits_BHLM, allowed_bhLM)
    has_key_BHL1 = total_BHL1 > 0.0
    safe_total_BHL1 = jnp.where(has_key_BHL1, total_BHL1, 1.0)
    lse_BHL1 = jnp.where(has_key_BHL1, jnp.log(safe_total_BHL1) + maximum_BHL1, MASKED)
    return exponentials_BHLM / safe_total_BHL1, lse_BHL1[..., 0]


def exponentials(logits_BHLM: Array, allowed_bhLM: Array) -> tuple[Float[Array, 'B H L M'], Array, Array]:
    """Returns exp(logits - maximum) for allowed keys and 0 for others,
    and the sums [B, H, L, 1] and maxima [B, H, L, 1] over the keys.
    """
    logits_BHLM = jnp.where(allowed_bhLM, logits_BHLM, MASKED)
    maximum_BHL1 = jax.lax.stop_gradient(logits_BHLM.max(axis=-1, keepdims=True))
    exponentials_BHLM = jnp.where(allowed_bhLM, jnp.exp(logits_BHLM - maximum_BHL1), 0.0)
    return exponentials_BHLM, exponentials_BHLM.sum(axis=-1, keepdims=True), maximum_BHL1


def slot_softmax(logits_BHLR: Array, is_there_bhlR: Array | None) -> Float[Array, 'B H L R']:
    """Returns softmax weights over an axis R, such as compressed keys;
    None as the mask means that all entries are allowed.

    JAX has a shorter backward pass if all slots are allowed.
    """
    if is_there_bhlR is None:
        return jax.nn.softmax(logits_BHLR, axis=-1)
    return masked_softmax(logits_BHLR, is_there_bhlR)[0]


def undivided_softmax(
    logits_BHLR: Array, is_there_bhlR: Array | None
) -> tuple[Float[Array, 'B H L R'], Float[Array, 'B H L 1']]:
    """Returns softmax weights before the division by their sum, and these sums as divisors.

    A divisor is at least 1, and 1 for a query without slots. If the product with the values is divided instead of the
    weights, neither the quotients nor their gradient need a pass over all pairs.
    """
    if is_there_bhlR is not None:
        exponentials_BHLR, total_BHL1, _ = exponentials(logits_BHLR, is_there_bhlR)
        return exponentials_BHLR, jnp.where(total_BHL1 > 0.0, total_BHL1, 1.0)
    maximum_BHL1 = jax.lax.stop_gradient(logits_BHLR.max(axis=-1, keepdims=True))
    exponentials_BHLR = jnp.exp(logits_BHLR - maximum_BHL1)
    return exponentials_BHLR, exponentials_BHLR.sum(axis=-1, keepdims=True)


def apply_weight_dropout(weights_BHLM: Array, request: Request) -> Float[Array, 'B H L M']:
    """Returns attention weights after dropout; the random bits depend only on the random key
    and on row, head, query and key indices.
    """
    if request.dropout is None:
        return weights_BHLM
    rate, rng = request.dropout
    keep_BHLM = dropout_keep_mask(
        rng, rate, weights_BHLM.shape[0], *map(request.global_indices, ('head', 'query', 'key'))
    )
    return jnp.where(keep_BHLM, weights_BHLM / (1.0 - rate), 0.0)


def dropout_slot_weights(weights_BHLR: Array, request: Request) -> Float[Array, 'B H L R']:
    """Returns attention weights of compressed keys after dropout; unchanged if dropout is off."""
    keep_BHLR = dropout_slot_mask(request, weights_BHLR.shape[3])
    return (
        weights_BHLR if keep_BHLR is None else jnp.where(keep_BHLR, weights_BHLR / (1.0 - dropout_rate(request)), 0.0)
    )


def dropout_rate(request: Request) -> float:
    """Returns the dropout rate of attention weights; 0 if dropout is off."""
    return request.dropout.rate if request.dropout else 0.0


def dropout_slot_mask(request: Request, slots: int) -> Bool[Array, 'B H L R'] | None:
    """Returns which attention weights of compressed keys dropout keeps; None if dropout is off."""
    if request.dropout is None:
        return None
    rate, rng = request.dropout
    return dropout_keep_mask(
        rng, rate, len(request.query), *map(request.global_indices, ('head', 'query')), jnp.arange(slots)
    )


def combine_values(
    weights_BHLM: Array, value_BMGK: Array, dtype: jnp.dtype, precision: jax.lax.Precision | None
) -> Float[Array, 'B L H K']:
    """Returns the sums of values weighted by dense attention weights, in float32,
    from products of operands in `dtype`.
    """
    batch, heads, queries, keys = weights_BHLM.shape
    groups, width = value_BMGK.shape[2:]
    weights_BGhLM = weights_BHLM.astype(dtype).reshape(batch, groups, heads // groups, queries, keys)
    value_BMGK = value_BMGK.astype(dtype)
    out_BLGhK = float32_einsum('BGhLM,BMGK->BLGhK', weights_BGhLM, value_BMGK, precision)
    return out_BLGhK.reshape(batch, queries, heads, width)
