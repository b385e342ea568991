"""Sinkhorn attention without an array of all pairs: sorted blocks beside a query's own, or some for all queries."""

import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.sinkhorn.definition import (
    Sinkhorn,
    Sort,
    check,
    key_blocks,
    readable,
    sort,
    whole_blocks,
)
from efficient_attention.attention.sinkhorn.sorting import in_blocks
from efficient_attention.attention.weights import drop_slots, undivided_softmax
from efficient_attention.attention.whole_rows import finish


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """The output of `Sinkhorn`, with padding, grouped heads, dropout of slots and noise of the sort."""
    check(request)
    mechanism, length, width = of_kind(Sinkhorn, request.mechanism), *request.query.shape[1::2]
    dtype, whole = request.query.dtype, whole_blocks(request)
    query_BHnsK = in_blocks(whole.query * (1.0 / math.sqrt(width)), mechanism.block)
    key_BHnsK, value_BHnsK = (key_blocks(x, whole) for x in (whole.key, whole.value))
    found = sort(whole, key_BHnsK)
    both_BHnsX = jnp.concatenate([key_BHnsK, value_BHnsK], axis=-1)
    slots_BHntX = mixed(found, both_BHnsX).astype(dtype)
    batch, heads, blocks, size, _ = query_BHnsK.shape
    if mechanism.cut:
        query_BHnsK = query_BHnsK.reshape(batch, heads, 1, blocks * size, width)
        slots_BHntX = slots_BHntX.reshape(batch, heads, 1, -1, 2 * width)
    else:
        slots_BHntX = jnp.concatenate([both_BHnsX, slots_BHntX], axis=3)
    logits_BHnst = float32_einsum('BHnsK,BHntK->BHnst', query_BHnsK, slots_BHntX[..., :width])
    logits_BHLR = logits_BHnst.reshape(batch, heads, blocks * size, -1)
    weights_BHLR, total_BHL1 = undivided_softmax(logits_BHLR, readable(whole, found.total_BHis))
    weights_BHnst = drop_slots(weights_BHLR, whole).reshape(logits_BHnst.shape).astype(dtype)
    sums_BHnsK = float32_einsum('BHnst,BHntK->BHnsK', weights_BHnst, slots_BHntX[..., width:])
    out_BHLK = sums_BHnsK.reshape(batch, heads, blocks * size, width) / total_BHL1
    out_BLHK = out_BHLK.swapaxes(1, 2)[:, :length]
    return finish(out_BLHK, request).astype(dtype), None


def mixed(found: Sort, x_BHjsX: Float[Array, 'B H j s X']) -> Float[Array, 'B H i s X']:
    """The slots of the sorted row, float32: shares of tokens over the sum of these shares."""
    shares_BHij, total_BHis = found
    mixed_BHisX = float32_einsum('BHij,BHjsX->BHisX', shares_BHij.astype(x_BHjsX.dtype), x_BHjsX)
    if total_BHis is None:
        return mixed_BHisX
    return mixed_BHisX / jnp.where(total_BHis > 0.0, total_BHis, 1.0)[..., None]
