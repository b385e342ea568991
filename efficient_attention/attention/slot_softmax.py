"""Computes softmax attention within groups of queries and slots, where a slot is a key or a weighted mix of keys.

The gradient of a logit is its weight times (the weight's gradient minus dout . out of the query). Sums over pairs,
which the quotient rule requires, thus become sums over the width of a vector. No weight is saved for the backward pass,
as in FlashAttention (Dao et al. 2022, arXiv 2205.14135). On CPUs jaxlib fuses sums over pairs with the products before
them, which makes the products several times slower.

Letters: s queries and m slots of a group; G is any number of axes before them.
"""

import functools
import math
from string import ascii_lowercase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.einsum import float32_einsum


class PairMasks(NamedTuple):
    """Masks of pairs of a query and a slot: which pairs attention allows, and which pairs dropout keeps.

    A slot is a key or a weighted mix of keys. An axis of a mask may have size 1, to broadcast.

    Args:
        is_there_Gsm: bool [*G, s, m], the slots that a query may read; None: all.
        is_kept_Gsm: bool [*G, s, m], the pairs that dropout keeps; None: dropout is off.
    """

    is_there_Gsm: Array | None = None
    is_kept_Gsm: Array | None = None


NO_PAIRS = PairMasks()


def attend_slots(
    query_GsK: Float[Array, '*G s K'],
    key_GmK: Float[Array, '*G m K'],
    value_GmX: Float[Array, '*G m X'],
    pairs: PairMasks = NO_PAIRS,
    dropout_rate: float = 0.0,
) -> Float[Array, '*G s X']:
    """Returns float32 softmax attention of each query over the slots (keys or mixed keys) of its group; zeros for a
    query that may read no slot.

    Matrix products use the operands' dtype.

    Args:
        query_GsK: queries, already scaled.
        key_GmK: keys of the slots, in the queries' dtype.
        value_GmX: values of the slots, in the queries' dtype.
        pairs: masks of query-slot pairs.
        dropout_rate: the rate at which `pairs.is_kept_Gsm` was sampled.
    """
    return _attend_slots(dropout_rate, query_GsK, key_GmK, value_GmX, pairs)


def attend_tokens_to_slots(
    query_BLHK: Float[Array, 'B L H K'],
    key_BHRK: Float[Array, 'B H R K'],
    value_BHRK: Float[Array, 'B H R K'],
    pairs: PairMasks = NO_PAIRS,
    dropout_rate: float = 0.0,
) -> Float[Array, 'B L H K']:
    """Returns float32 softmax attention of all tokens of a row over a few slots (mixed keys) per head; the function
    scales the queries.
    """
    query_BHLK = query_BLHK.swapaxes(1, 2) * (1.0 / math.sqrt(query_BLHK.shape[3]))
    return attend_slots(query_BHLK, key_BHRK, value_BHRK, pairs, dropout_rate).swapaxes(1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_slots(
    rate: float, query_GsK: Array, key_GmK: Array, value_GmX: Array, pairs: PairMasks
) -> Float[Array, '*G s X']:
    return _forward(rate, query_GsK, key_GmK, value_GmX, pairs)[0]


def _forward(rate: float, query_GsK: Array, key_GmK: Array, value_GmX: Array, pairs: PairMasks) -> tuple[Array, Any]:
    logits_Gsm = _logits(query_GsK, key_GmK)
    maximum_Gs1 = _fill_unreadable(logits_Gsm, pairs, MASKED).max(axis=-1, keepdims=True)
    parts_Gsm = _unnormalised_weights(logits_Gsm, maximum_Gs1, pairs)
    total_Gs1 = parts_Gsm.sum(axis=-1, keepdims=True)
    total_Gs1 = total_Gs1 if pairs.is_there_Gsm is None else jnp.where(total_Gs1 > 0.0, total_Gs1, 1.0)
    sums_GsX = _weighted_sums(_apply_dropout_mask(parts_Gsm, pairs).astype(value_GmX.dtype), value_GmX)
    out_GsX = sums_GsX / ((1.0 - rate) * total_Gs1)
    return out_GsX, (query_GsK, key_GmK, value_GmX, pairs, out_GsX, maximum_Gs1, total_Gs1)


def _backward(rate: float, saved: Any, dout_GsX: Array) -> tuple[Array, Array, Array, None]:
    query_GsK, key_GmK, value_GmX, pairs, out_GsX, maximum_Gs1, total_Gs1 = saved
    logits_Gsm, to_vectors = jax.vjp(_logits, query_GsK, key_GmK)
    parts_Gsm = _unnormalised_weights(logits_Gsm, maximum_Gs1, pairs)
    read_Gsm, g = _apply_dropout_mask(parts_Gsm, pairs).astype(value_GmX.dtype), _einsum_letters(parts_Gsm)
    _, to_value = jax.vjp(lambda value_GmX: _weighted_sums(read_Gsm, value_GmX), value_GmX)
    # Both terms of a logit's gradient use the same rounded value, because they cancel if a weight is near 1.
    # The gradient of the weighted sums is not rounded to float16, in which it may underflow.
    dtype = jnp.bfloat16 if value_GmX.dtype == jnp.bfloat16 else jnp.float32
    dsums_GsX = (dout_GsX / ((1.0 - rate) * total_Gs1)).astype(dtype)
    rounded_GsX = dsums_GsX.astype(jnp.float32)
    delta_Gs1 = (1.0 - rate) * (rounded_GsX * out_GsX).sum(axis=-1, keepdims=True)
    dparts_Gsm = float32_einsum(f'{g}sx,{g}mx->{g}sm', dsums_GsX, value_GmX.astype(dtype))
    [dvalue_GmX] = to_value(rounded_GsX)
    dlogits_Gsm = parts_Gsm * (_apply_dropout_mask(dparts_Gsm, pairs) - delta_Gs1)
    return *to_vectors(dlogits_Gsm), dvalue_GmX, None


_attend_slots.defvjp(_forward, _backward)


def _logits(query_GsK: Array, key_GmK: Array) -> Float[Array, '*G s m']:
    g = _einsum_letters(query_GsK)
    return float32_einsum(f'{g}sk,{g}mk->{g}sm', query_GsK, key_GmK)


def _weighted_sums(read_Gsm: Array, value_GmX: Array) -> Float[Array, '*G s X']:
    g = _einsum_letters(read_Gsm)
    return float32_einsum(f'{g}sm,{g}mx->{g}sx', read_Gsm, value_GmX)


def _einsum_letters(x_Gsm: Float[Array, '*G s m']) -> str:
    """Returns the einsum letters of the leading axes, which number the groups: one letter per axis."""
    return ascii_lowercase[: x_Gsm.ndim - 2]


def _unnormalised_weights(logits_Gsm: Array, maximum_Gs1: Array, pairs: PairMasks) -> Float[Array, '*G s m']:
    """Returns the softmax weights before they are divided by their sum."""
    return _fill_unreadable(jnp.exp(_fill_unreadable(logits_Gsm, pairs, MASKED) - maximum_Gs1), pairs, 0.0)


def _fill_unreadable(x_Gsm: Array, pairs: PairMasks, other: float) -> Float[Array, '*G s m']:
    """Returns `x_Gsm` with the number `other` at pairs where a query may not read a slot."""
    return x_Gsm if pairs.is_there_Gsm is None else jnp.where(pairs.is_there_Gsm, x_Gsm, other)


def _apply_dropout_mask(x_Gsm: Array, pairs: PairMasks) -> Float[Array, '*G s m']:
    """Returns `x_Gsm` with zeros at the pairs that dropout drops."""
    return x_Gsm if pairs.is_kept_Gsm is None else jnp.where(pairs.is_kept_Gsm, x_Gsm, 0.0)
