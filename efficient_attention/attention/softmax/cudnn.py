"""The backend `cudnn`: softmax attention on cuDNN through `jax.nn.dot_product_attention`.

The backend supports only calls that cuDNN computes exactly. No mask is ever passed, because the library would turn it
into an additive bias of all pairs. A left window must be combined with `is_causal`, without which cuDNN reads later
keys (jax issue 39576).
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.logits.definition import request_pattern
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.patterns import Pattern, Reach
from efficient_attention.attention.request import Request

WIDEST_HEAD = 128  # largest head width that all GPUs with cuDNN's fused attention support; some GPUs support 256


def compute_attention(request: Request) -> tuple[Array, None]:
    """Returns the output of softmax attention that cuDNN computes:
    a full, causal or causal & window pattern, with 16-bit inputs.
    """
    check_supported(request)
    reach = request_pattern(request).reach
    out = jax.nn.dot_product_attention(
        request.query,
        request.key,
        request.value,
        is_causal=reach.ahead == 0,
        local_window_size=None if math.isinf(reach.back) else (int(reach.back), 0),
        implementation='cudnn',
    )
    return out, None


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
        f'inputs of type {request.query.dtype}': request.query.dtype not in (jnp.bfloat16, jnp.float16),
        f'heads {width} wide': width % 8 != 0 or width > WIDEST_HEAD,
        'additive bias': request.bias is not None or request.relative is not None,
        'additive scores': request.additive is not None,
        'segments': request.segments is not None,
        'attention dropout': request.dropout is not None,
        'log-sum-exp that can be merged': request.return_lse,
        'unequal lengths or other positions than 0, 1, ...': not is_full and not has_aligned_positions(request),
    }
    raise_unsupported('cudnn', lacks)


def has_aligned_positions(request: Request) -> bool:
    """Returns whether queries and keys have equal lengths and the positions 0, 1, ..."""
    return request.query.shape[1] == request.key.shape[1] and request.has_default_positions


def is_supported(pattern: Pattern) -> bool:
    """Returns whether cuDNN can compute this pattern without a mask:
    the full pattern, the causal pattern or a causal window.
    """
    return pattern.is_band and (pattern.is_causal or pattern.reach == Reach(math.inf, math.inf))
