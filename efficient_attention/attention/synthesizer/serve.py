"""Synthesizers as softmax attention: of other queries and keys, or with a bias, on softmax's own backends."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.logits.definition import dense_bias
from efficient_attention.attention.mechanism import Mechanism, of_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.room import Result, Room
from efficient_attention.attention.synthesizer import table_loop
from efficient_attention.attention.synthesizer.definition import Synthesizer, check, entries, rows
from efficient_attention.attention.whole_rows import per_head


def softmax_of(softmax: Room, mechanism: Synthesizer) -> Mechanism:
    """Softmax over the same pattern."""
    make: Any = softmax.kind
    return make(mechanism.pattern)


def serve(softmax: Room, request: Request) -> Result:
    """The output of `Synthesizer` and its log-sum-exp, with every option of softmax attention, in whose room it is."""
    if table_loop.is_served(request):
        check(request)
        return table_loop.serve(request, values(request))
    return softmax.serve(as_softmax(softmax, request))


def as_softmax(softmax: Room, request: Request) -> Request:
    """The request of softmax attention that gives the same."""
    check(request)
    mechanism, bias = of_kind(Synthesizer, request.mechanism), request.bias
    if mechanism.reads_tables_as_logits(request.query.shape[3]):
        logits_bHLM, bias_bhlm = logits_of(request), dense_bias(request)
        bias = logits_bHLM if bias_bhlm is None else logits_bHLM + bias_bhlm
    query, key = compared(request)
    request = dataclasses.replace(request, mechanism=softmax_of(softmax, mechanism), bias=bias, value=values(request))
    return dataclasses.replace(request, query=query, key=key, learned=None)


def compared(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B M H K']]:
    """The queries and keys whose scaled products are the logits, beside those that tables give as they are."""
    mechanism, scale = of_kind(Synthesizer, request.mechanism), math.sqrt(request.query.shape[3])
    query, key = request.query, per_head(request.key, request.query.shape[2])
    if mechanism.reads_keys:
        return query, key
    if mechanism.reads_tables_as_logits(request.query.shape[3]):
        return jnp.zeros_like(query), jnp.zeros_like(key)
    of_keys_BMHK = tokens(rows(request.operand('keys'), request.positions_in_row.key), query)
    if mechanism.kind == 'dense':
        return jax.nn.relu(query) * scale, of_keys_BMHK
    return tokens(rows(request.operand('queries'), request.positions_in_row.query) * scale, query), of_keys_BMHK


def values(request: Request) -> Float[Array, 'B M H K']:
    """The values of each head, whose keys are its own."""
    return per_head(request.value, request.query.shape[2])


def tokens(rows_bMHX: Float[Array, 'b M H X'], like_BLHK: Float[Array, 'B L H K']) -> Float[Array, 'B M H K']:
    """Rows of a table as queries or keys like others: for each batch row, as wide as a head, zeros behind them."""
    padded_bMHK = jnp.pad(rows_bMHX, ((0, 0), (0, 0), (0, 0), (0, like_BLHK.shape[3] - rows_bMHX.shape[3])))
    return jnp.broadcast_to(padded_bMHK, (like_BLHK.shape[0], *padded_bMHK.shape[1:])).astype(like_BLHK.dtype)


def table_of(request: Request) -> Float[Array, 'H N N']:
    """The logits of all pairs of positions."""
    if of_kind(Synthesizer, request.mechanism).kind == 'factorized':
        return jnp.einsum('HNR,HMR->HNM', request.operand('queries'), request.operand('keys'))
    return request.operand('table')


def logits_of(request: Request) -> Float[Array, 'b H L M']:
    """The logits of a request's pairs: a part of the table where positions are 0, 1, ..."""
    table_HNN = table_of(request)
    if request.place is None and request.has_default_positions:
        return table_HNN[None, :, : request.query.shape[1], : request.key.shape[1]]
    return entries(table_HNN, *request.positions_in_row)
