"""Synthesizers computed as softmax attention on softmax's backends: with other queries and keys, or with a bias."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.logits.definition import dense_bias
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.room import Result, Room
from efficient_attention.attention.synthesizer import table_loop
from efficient_attention.attention.synthesizer.definition import Synthesizer, check, entries, rows, softmax_of
from efficient_attention.attention.whole_rows import per_head


def serve(softmax: Room, request: Request) -> Result:
    """Returns the output of `Synthesizer` and its log-sum-exp, with every option of softmax attention."""
    if table_loop.is_served(request):
        check(request)
        return table_loop.serve(request, per_head(request.key, request.query.shape[2]), values(request))
    out_BLHX, lse_BLH = softmax.serve(as_softmax(softmax, request))
    return out_BLHX[..., : request.query.shape[3]], lse_BLH


def as_softmax(softmax: Room, request: Request) -> Request:
    """Returns the equivalent request of softmax attention."""
    check(request)
    mechanism, bias = of_kind(Synthesizer, request.mechanism), request.bias
    if mechanism.reads_table_as_logits:
        logits_bHLM, bias_bhlm = logits_of(request), dense_bias(request)
        bias = logits_bHLM if bias_bhlm is None else logits_bHLM + bias_bhlm
    query, key = compared(request)
    value = widened(values(request), query.shape[3])
    request = dataclasses.replace(request, mechanism=softmax_of(softmax, mechanism), bias=bias, value=value)
    return dataclasses.replace(request, query=query, key=key, learned=None)


def compared(request: Request) -> tuple[Float[Array, 'B L H X'], Float[Array, 'B M H X']]:
    """Returns queries and keys whose scaled products are the logits, apart from logits that a table gives directly."""
    mechanism = of_kind(Synthesizer, request.mechanism)
    scale = math.sqrt(mechanism.compared_width(request.query.shape[3]))
    query, key = request.query, per_head(request.key, request.query.shape[2])
    if mechanism.reads.keys:
        return query, key
    if mechanism.reads_table_as_logits:
        return jnp.zeros_like(query), jnp.zeros_like(key)
    of_keys_BMHK = tokens(rows(request.operand('keys'), request.positions_in_row.key), query)
    if mechanism.kind == 'dense':
        return jax.nn.relu(query) * scale, of_keys_BMHK
    return tokens(rows(request.operand('queries'), request.positions_in_row.query) * scale, query), of_keys_BMHK


def values(request: Request) -> Float[Array, 'B M H K']:
    """Returns the values of each query head."""
    return per_head(request.value, request.query.shape[2])


def tokens(rows_bMHX: Float[Array, 'b M H X'], like_BLHK: Float[Array, 'B L H K']) -> Float[Array, 'B M H W']:
    """Returns rows of a table as queries or keys: for each batch row, and padded with zeros to a head's width."""
    padded_bMHW = widened(rows_bMHX, like_BLHK.shape[3])
    return jnp.broadcast_to(padded_bMHW, (like_BLHK.shape[0], *padded_bMHW.shape[1:])).astype(like_BLHK.dtype)


def widened(x_BMHK: Float[Array, 'B M H K'], width: int) -> Float[Array, 'B M H W']:
    """Returns the vectors padded with zeros to `width`; unchanged if they are that wide."""
    return jnp.pad(x_BMHK, ((0, 0), (0, 0), (0, 0), (0, max(0, width - x_BMHK.shape[3]))))


def logits_of(request: Request) -> Float[Array, 'b H L M']:
    """Returns the table's logits of a request's pairs: a slice of the table if positions are 0, 1, ..."""
    table_HNN = request.operand('table')
    if request.has_default_positions:
        return table_HNN[None, :, : request.query.shape[1], : request.key.shape[1]]
    return entries(table_HNN, *request.positions_in_row)
