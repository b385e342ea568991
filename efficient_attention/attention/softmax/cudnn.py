"""The backend `cudnn`: softmax attention on cuDNN through `jax.nn.dot_product_attention`.

The backend supports only calls that cuDNN computes exactly. No mask is ever passed, because JAX would turn it
into an additive bias of all pairs. Padding is passed as the lengths of the rows. A left window must be combined with
`is_causal`, without which cuDNN reads later keys (jax issue 39576).
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import has_divisible_heads, shard_activations
from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.logits.definition import request_pattern
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.patterns import Pattern, Reach
from efficient_attention.attention.request import Request, without_padding

OLDEST_GPU = 8.0  # the lowest compute capability with cuDNN's fused attention (Ampere)
# Errors of JAX that mean that cuDNN cannot compute a call: no usable cuDNN, and a `jax.vmap` over only some of the
# arrays, which the batching rules of cuDNN's call do not support.
KNOWN_ERRORS = ((RuntimeError, 'cuDNN'), (TypeError, 'cannot reshape array'))
WIDEST_HEAD = 256  # on the newest GPUs; JAX raises a NotImplementedError where cuDNN supports only 128


def compute_attention(request: Request) -> tuple[Array, None]:
    """Returns the output of softmax attention that cuDNN computes:
    a full, causal or causal & window pattern, with 16-bit inputs.
    """
    check_supported(request)
    try:
        return attend_fused(request, 'cudnn'), None
    except (RuntimeError, TypeError) as error:
        if not any(isinstance(error, kind) and words in str(error) for kind, words in KNOWN_ERRORS):
            raise
        raise NotImplementedError(f'cudnn cannot run here: {error}') from None


def attend_fused(request: Request, implementation: Literal['cudnn', 'xla']) -> Array:
    """Returns the output of `jax.nn.dot_product_attention` for a request that `check_supported` accepts.

    The result with 'xla' is the same up to rounding, on any device; tests compare it with the definition.
    """
    reach, query_lengths_B, key_lengths_B = request_pattern(request).reach, None, None
    if request.lengths is not None:
        # A row of padding gets the length 1, because cuDNN does not define the result without keys. The lengths are
        # sharded like the rows, because JAX would pass all lengths of a replicated array to each device.
        query_lengths_B, key_lengths_B = (
            shard_activations(jnp.clip(one_B, 1, x.shape[1]), 'B')
            for one_B, x in zip(request.lengths, (request.query, request.key), strict=True)
        )
    # cuDNN requires one sharding of queries, keys and values, so heads are only sharded if the mesh divides both.
    by_head = has_divisible_heads(request.query.shape[2], request.key.shape[2])
    out = jax.nn.dot_product_attention(
        *(
            shard_activations(x, letters if by_head else letters[:2] + 'KK')
            for x, letters in ((request.query, 'BLHK'), (request.key, 'BMGK'), (request.value, 'BMGK'))
        ),
        query_seq_lengths=query_lengths_B,
        key_value_seq_lengths=key_lengths_B,
        is_causal=reach.ahead == 0,
        local_window_size=None if math.isinf(reach.back) else (int(reach.back), 0),
        implementation=implementation,
    )
    if request.segments is None:
        return out
    # Queries of padding give zeros; so do queries of a row whose keys are all padding.
    has_keys_B1 = request.segments.key[:, :1] != 0
    return without_padding(out, jnp.where(has_keys_B1, request.segments.query, 0))


def check_supported(request: Request) -> None:
    """Raises a NotImplementedError that names each feature of this attention request
    that cuDNN or this machine lacks.
    """
    pattern = request_pattern(request)
    if not is_supported(pattern):
        raise NotImplementedError(
            f'cudnn supports Softmax over full, causal and causal & window, not {request.mechanism}'
        )
    is_full, width = not pattern.is_causal, request.query.shape[3]
    lacks = {
        'GPU on this machine': not device_tuning().has_cudnn,
        f'support for GPUs of a compute capability below {OLDEST_GPU}': has_older_gpu(),
        f'inputs of type {request.query.dtype}': request.query.dtype not in (jnp.bfloat16, jnp.float16),
        f'support for heads of width {width}': width % 8 != 0 or width > WIDEST_HEAD,
        'additive bias': request.bias is not None or request.relative is not None,
        'additive scores': request.additive is not None,
        'support for packed segments': request.segments is not None and request.lengths is None,
        'windows with different lengths of queries and keys': has_window_and_two_lengths(request),
        'attention dropout': request.dropout is not None,
        'log-sum-exp that can be merged': request.return_lse,
        'support for unequal lengths, or for positions other than 0, 1, ...': not is_full
        and not has_aligned_positions(request),
    }
    raise_unsupported('cudnn', lacks)


def has_window_and_two_lengths(request: Request) -> bool:
    """Returns whether the pattern has a window and the lengths of queries and keys may differ.

    Then a query may have no key in its window, and cuDNN does not define its result.
    """
    lengths, reach = request.lengths, request_pattern(request).reach
    return lengths is not None and lengths.query is not lengths.key and not math.isinf(reach.back)


def has_older_gpu() -> bool:
    """Returns whether this process computes on an NVIDIA GPU that is too old for cuDNN's fused attention."""
    # JAX gives only NVIDIA GPUs a compute capability.
    capability = getattr(jax.local_devices()[0], 'compute_capability', None)
    return capability is not None and float(capability) < OLDEST_GPU


def has_aligned_positions(request: Request) -> bool:
    """Returns whether queries and keys have equal lengths and the positions 0, 1, ..."""
    return request.query.shape[1] == request.key.shape[1] and request.has_default_positions


def is_supported(pattern: Pattern) -> bool:
    """Returns whether cuDNN can compute this pattern without a mask:
    the full pattern, the causal pattern or a causal window.
    """
    return pattern.is_band and (pattern.is_causal or pattern.reach == Reach(math.inf, math.inf))
