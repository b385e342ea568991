"""Computes synthesizers by the backends of softmax attention: learned tables take the place of queries and keys, or are
added as a bias.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.implementation import Implementation, Result
from efficient_attention.attention.logits.definition import dense_bias
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import repeat_key_heads
from efficient_attention.attention.synthesizer import table_loop
from efficient_attention.attention.synthesizer.definition import (
    Synthesizer,
    check_request,
    equivalent_softmax,
    table_entries,
    table_rows,
)


def compute_attention(softmax: Implementation, request: Request) -> Result:
    """Returns the synthesizer's output and log-sum-exp; supports every option
    of softmax attention except additive scores.
    """
    if table_loop.is_supported(request):
        check_request(request)
        return table_loop.compute_attention(
            request, repeat_key_heads(request.key, request.query.shape[2]), values_per_head(request)
        )
    out_BLHX, lse_BLH = softmax.compute(as_softmax_request(softmax, request))
    return out_BLHX[..., : request.query.shape[3]], lse_BLH


def as_softmax_request(softmax: Implementation, request: Request) -> Request:
    """Returns the request of softmax attention that gives the same result as the synthesizer's request."""
    check_request(request)
    mechanism, bias = ensure_kind(Synthesizer, request.mechanism), request.bias
    if mechanism.reads_table_as_logits:
        logits_bHLM, bias_bhlm = table_logits(request), dense_bias(request)
        bias = logits_bHLM if bias_bhlm is None else logits_bHLM + bias_bhlm
    query, key = softmax_queries_keys(request)
    value = pad_width(values_per_head(request), query.shape[3])
    request = dataclasses.replace(request, mechanism=equivalent_softmax(softmax, mechanism), bias=bias, value=value)
    return dataclasses.replace(request, query=query, key=key, learned=None)


def softmax_queries_keys(request: Request) -> tuple[Float[Array, 'B L H X'], Float[Array, 'B M H X']]:
    """Returns queries and keys whose scaled products are the synthesizer's logits;
    zeros if a table gives the logits directly.
    """
    mechanism = ensure_kind(Synthesizer, request.mechanism)
    scale = math.sqrt(mechanism.softmax_head_width(request.query.shape[3]))
    query, key = request.query, repeat_key_heads(request.key, request.query.shape[2])
    if mechanism.key_access.keys:
        return query, key
    if mechanism.reads_table_as_logits:
        return jnp.zeros_like(query), jnp.zeros_like(key)
    of_keys_BMHK = table_rows_as_tokens(
        table_rows(request.learned_operand('keys'), request.full_row_positions.key), query
    )
    if mechanism.kind == 'dense':
        return jax.nn.relu(query) * scale, of_keys_BMHK
    return table_rows_as_tokens(
        table_rows(request.learned_operand('queries'), request.full_row_positions.query) * scale, query
    ), of_keys_BMHK


def values_per_head(request: Request) -> Float[Array, 'B M H K']:
    """Returns the values of each query head; neighbouring query heads share the values of a key head."""
    return repeat_key_heads(request.value, request.query.shape[2])


def table_rows_as_tokens(
    rows_bMHX: Float[Array, 'b M H X'], like_BLHK: Float[Array, 'B L H K']
) -> Float[Array, 'B M H W']:
    """Returns rows of a learned table as queries or keys: repeated for each batch row,
    and padded with zeros to a head's width.
    """
    padded_bMHW = pad_width(rows_bMHX, like_BLHK.shape[3])
    return jnp.broadcast_to(padded_bMHW, (like_BLHK.shape[0], *padded_bMHW.shape[1:])).astype(like_BLHK.dtype)


def pad_width(x_BMHK: Float[Array, 'B M H K'], width: int) -> Float[Array, 'B M H W']:
    """Returns vectors padded with zeros to `width`; unchanged if they already have this width."""
    return jnp.pad(x_BMHK, ((0, 0), (0, 0), (0, 0), (0, max(0, width - x_BMHK.shape[3]))))


def table_logits(request: Request) -> Float[Array, 'b H L M']:
    """Returns the learned table's logits for a request's query-key pairs;
    a plain slice of the table if positions are 0, 1, ...
    """
    table_HNN = request.learned_operand('table')
    if request.has_default_positions:
        return table_HNN[None, :, : request.query.shape[1], : request.key.shape[1]]
    return table_entries(table_HNN, *request.full_row_positions)
