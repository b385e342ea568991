"""Computes Sinkhorn attention without an array of all query-key pairs:
a query reads only its own block and sorted blocks.
"""

import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dense_attention import (
    dropout_rate,
    dropout_slot_mask,
    dropout_slot_weights,
    undivided_softmax,
)
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import mask_queries_without_keys
from efficient_attention.attention.sinkhorn.definition import (
    BlockSort,
    Sinkhorn,
    check_request,
    key_blocks,
    pad_to_whole_blocks,
    readable_slots,
    sort_blocks,
)
from efficient_attention.attention.sinkhorn.sorting import split_into_blocks
from efficient_attention.attention.slot_softmax import PairMasks, attend_slots


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of Sinkhorn attention; supports padding, grouped heads, noise in the sort,
    and dropout of keys and mixed keys.
    """
    check_request(request)
    mechanism, length, width = ensure_kind(Sinkhorn, request.mechanism), *request.query.shape[1::2]
    dtype, whole = request.query.dtype, pad_to_whole_blocks(request)
    query_BHnsK = split_into_blocks(whole.query * (1.0 / math.sqrt(width)), mechanism.block)
    key_BHnsK, value_BHnsK = (key_blocks(x, whole) for x in (whole.key, whole.value))
    found = sort_blocks(whole, key_BHnsK)
    sorted_BHisK, sorted_BHisV = (mix_sorted_blocks(found, x).astype(dtype) for x in (key_BHnsK, value_BHnsK))
    is_there_bhLR = readable_slots(whole, found.total_BHis)
    if mechanism.cut:
        out_BHnsK = attend_shared_slots(whole, query_BHnsK, sorted_BHisK, sorted_BHisV, is_there_bhLR)
    else:
        key_BHntK = jnp.concatenate([key_BHnsK, sorted_BHisK], axis=3)
        value_BHntK = jnp.concatenate([value_BHnsK, sorted_BHisV], axis=3)
        masks = is_there_bhLR, dropout_slot_mask(whole, 2 * mechanism.block)
        pairs = PairMasks(
            *(None if x_BHLR is None else group_query_pairs(x_BHLR, query_BHnsK.shape[2]) for x_BHLR in masks)
        )
        out_BHnsK = attend_slots(query_BHnsK, key_BHntK, value_BHntK, pairs, dropout_rate(request))
    out_BHLK = out_BHnsK.reshape(*out_BHnsK.shape[:2], -1, width)
    out_BLHK = out_BHLK.swapaxes(1, 2)[:, :length]
    return mask_queries_without_keys(out_BLHK, request).astype(dtype), None


def attend_shared_slots(
    request: Request,
    query_BHnsK: Float[Array, 'B H n s K'],
    key_BHisK: Float[Array, 'B H i s K'],
    value_BHisK: Float[Array, 'B H i s K'],
    is_there_bh1R: Bool[Array, '#B #H 1 R'] | None,
) -> Float[Array, 'B H L K']:
    """Returns the float32 attention output of queries that all read the same few mixed keys. For such queries it is
    faster than `attend_slots`.

    The request's rows must be whole blocks.
    """
    query_BHLK, key_BHRK, value_BHRK = (
        x.reshape(*x.shape[:2], -1, x.shape[4]) for x in (query_BHnsK, key_BHisK, value_BHisK)
    )
    logits_BHLR = float32_einsum('BHLK,BHRK->BHLR', query_BHLK, key_BHRK)
    weights_BHLR, total_BHL1 = undivided_softmax(logits_BHLR, is_there_bh1R)
    weights_BHLR = dropout_slot_weights(weights_BHLR, request).astype(value_BHRK.dtype)
    return float32_einsum('BHLR,BHRK->BHLK', weights_BHLR, value_BHRK) / total_BHL1


def group_query_pairs(x_BHLR: Bool[Array, 'B H L R'], groups: int) -> Bool[Array, 'B H n s R']:
    """Returns a mask [B, H, L, R] of query-key pairs with the queries cut into groups: [B, H, n, s, R]."""
    batch, heads, length, slots = x_BHLR.shape
    return x_BHLR.reshape(batch, heads, groups, length // groups, slots)


def mix_sorted_blocks(found: BlockSort, x_BHjsX: Float[Array, 'B H j s X']) -> Float[Array, 'B H i s X']:
    """Returns the mixed keys or values of the sorted row in float32:
    tokens of all blocks times their shares, divided by the sum of these shares.

    Shares stay in float32 if the sum is not 1. The sum may be so small that rounded 16-bit shares would not cancel with
    it, least of all in gradients.
    """
    shares_BHij, total_BHis = found
    if total_BHis is None:
        return float32_einsum('BHij,BHjsX->BHisX', shares_BHij.astype(x_BHjsX.dtype), x_BHjsX)
    mixed_BHisX = float32_einsum('BHij,BHjsX->BHisX', shares_BHij, x_BHjsX.astype(jnp.float32))
    return mixed_BHisX / jnp.where(total_BHis > 0.0, total_BHis, 1.0)[..., None]
