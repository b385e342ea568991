"""Computes Linformer in time and memory linear in the length: keys
and values are compressed first, then read by all queries.
"""

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import dropout_rate, dropout_slot_mask
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.linformer.definition import projection_matrices
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import (
    check_single_text_rows,
    mask_queries_without_keys,
    repeat_key_heads,
)
from efficient_attention.attention.slot_softmax import PairMasks, attend_tokens_to_slots


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], None]:
    """Returns the output of Linformer; supports padding, cross-attention, grouped heads and dropout.

    Dropout acts on the weights of compressed keys.
    """
    check_single_text_rows(request)
    heads = request.query.shape[2]
    keys_BHRK, values_BHRK = (
        repeat_key_heads(x_BRGK, heads).swapaxes(1, 2) for x_BRGK in compress_keys_values(request)
    )
    pairs = PairMasks(None, dropout_slot_mask(request, keys_BHRK.shape[2]))
    out_BLHK = attend_tokens_to_slots(request.query, keys_BHRK, values_BHRK, pairs, dropout_rate(request))
    return mask_queries_without_keys(out_BLHK, request).astype(request.query.dtype), None


def compress_keys_values(request: Request) -> tuple[Float[Array, 'B R _ K'], Float[Array, 'B R _ K']]:
    """Returns Linformer's compressed keys and values: learned mixtures of all keys and of all values."""
    of_keys_HRM, of_values_HRM = projection_matrices(request)
    return project_sequence(of_keys_HRM, request.key), project_sequence(of_values_HRM, request.value)


def project_sequence(mixture_HRM: Float[Array, '#H R M'], x_BMGK: Float[Array, 'B M G K']) -> Float[Array, 'B R _ K']:
    """Returns learned mixtures of keys or values: per query head if each head has a separate matrix, else per key
    head.
    """
    dtype, heads = x_BMGK.dtype, mixture_HRM.shape[0]
    mixture_HRM = mixture_HRM.astype(dtype)
    if heads == 1:
        return float32_einsum('RM,BMGK->BRGK', mixture_HRM[0], x_BMGK).astype(dtype)
    return float32_einsum('HRM,BMHK->BRHK', mixture_HRM, repeat_key_heads(x_BMGK, heads)).astype(dtype)
