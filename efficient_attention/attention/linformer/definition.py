"""Defines Linformer: softmax attention over a few compressed keys and values,
each a learned mixture of all keys or of all values.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import dropout_slot_weights, masked_softmax
from efficient_attention.attention.mechanism import Capabilities, LearnedOperand, Mechanism, Requirements, ensure_kind
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import (
    check_single_text_rows,
    mask_queries_without_keys,
    repeat_key_heads,
    valid_keys,
)
from efficient_attention.errors import require_at_least, require_truth_values

HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class Linformer(Mechanism):
    """Linformer attention softmax(q (E k)^T / sqrt(K)) F v, where E
    and F [rank, length] are learned; padding counts as zeros.

    The weights of the keys, softmax(...) F, need not sum to 1 and may be negative. There is no causal form, because
    every compressed key mixes the whole row.

    Source: Wang et al. 2020, arXiv 2006.04768, equation 7.

    Args:
        rank: number of compressed keys.
        length: largest number of keys, for which E and F have columns.
        tied: F is E.
        by_head: each head has its own E and F; else all heads share them.
        by_layer: each layer has its own E and F; else all layers share them.
    """

    name = 'linformer'
    capabilities = Capabilities(drops_slots=True)  # dropout acts on the weights of compressed keys

    rank: int = 256
    length: int = 512
    tied: bool = True
    by_head: bool = False
    by_layer: bool = True

    def __post_init__(self) -> None:
        require_at_least(1, 'linformer rank', self.rank)
        require_at_least(1, 'linformer length', self.length)
        require_truth_values('linformer', tied=self.tied, by_head=self.by_head, by_layer=self.by_layer)

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires at most `length` keys, and rows that hold one text, because each compressed key mixes a whole row.

        A key's index in the row selects its column of E and F.
        """
        return Requirements(positions=False, whole_rows=True, longest=self.length)

    def learned_operands(self, heads: int, width: int) -> dict[str, LearnedOperand]:  # noqa: ARG002
        """Returns the declarations of the learned matrices E (as `keys`) and, unless tied,
        F (as `values`), [1 or H, rank, length].
        """
        shape = (heads if self.by_head else 1, self.rank, self.length)
        made = LearnedOperand(shape, 1.0 / math.sqrt(self.length), is_shared=not self.by_layer)
        return {'keys': made} if self.tied else {'keys': made, 'values': made}


def projection_matrices(request: Request) -> tuple[Float[Array, '#H R M'], Float[Array, '#H R M']]:
    """Returns Linformer's matrices E and F, cut to as many columns as the attention request has keys."""
    keys = request.key.shape[1]
    of_keys_HRM = request.learned_operand('keys')[..., :keys]
    is_tied = ensure_kind(Linformer, request.mechanism).tied
    return of_keys_HRM, of_keys_HRM if is_tied else request.learned_operand('values')[..., :keys]


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns Linformer's dense attention weights of the original keys. Dropout has already acted on the weights of the
    compressed keys.
    """
    check_single_text_rows(request)
    heads, width = request.query.shape[2:]
    of_keys_HRM, of_values_HRM = (jnp.broadcast_to(x, (heads, *x.shape[1:])) for x in projection_matrices(request))
    valid_BM = valid_keys(request)
    key_BMHK = repeat_key_heads(request.key, heads).astype(jnp.float32)
    slots_BRHK = jnp.einsum('HRM,BMHK->BRHK', of_keys_HRM, key_BMHK, precision=HIGHEST)
    query_BLHK = request.query.astype(jnp.float32) / math.sqrt(width)
    logits_BHLR = jnp.einsum('BLHK,BRHK->BHLR', query_BLHK, slots_BRHK, precision=HIGHEST)
    slot_weights_BHLR, _ = masked_softmax(logits_BHLR, jnp.ones((1, 1, 1, 1), bool))
    weights_BHLM = jnp.einsum(
        'BHLR,HRM->BHLM', dropout_slot_weights(slot_weights_BHLR, request), of_values_HRM, precision=HIGHEST
    )
    if valid_BM is not None:
        weights_BHLM = jnp.where(valid_BM[:, None, None], weights_BHLM, 0.0)
    return mask_queries_without_keys(weights_BHLM.swapaxes(1, 2), request).swapaxes(1, 2), None


def multiply_adds(mechanism: Linformer, length: int, heads: int, width: int) -> int:
    """Returns Linformer's multiply-adds for one row: compression of keys and values,
    and attention to the compressed keys.
    """
    return 4 * heads * length * mechanism.rank * width
