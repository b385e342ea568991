"""Softmax attention on cuDNN through `jax.nn.dot_product_attention`, for what that serves exactly on an NVIDIA GPU.

No mask is ever passed: the library would turn it into an additive bias of all pairs. A left window goes together with
`is_causal`, without which cuDNN reads later keys (jax issue 39576).
"""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.mechanism import Softmax
from efficient_attention.attention.patterns import And, Causal, Full, Pattern, Window
from efficient_attention.attention.request import Request

WIDEST_HEAD = 128  # on every GPU that cuDNN's fused attention runs on; 256 on some


def serve(request: Request) -> tuple[Array, None]:
    """Serves `Softmax` over full, causal and causal & window(radius), 16-bit inputs at positions 0, 1, ..."""
    check_served(request)
    assert isinstance(request.mechanism, Softmax)
    radius = window_radius(request.mechanism.pattern)
    out = jax.nn.dot_product_attention(
        request.query,
        request.key,
        request.value,
        is_causal=not isinstance(request.mechanism.pattern, Full),
        local_window_size=None if radius is None else (radius, 0),
        implementation='cudnn',
    )
    return out, None


def check_served(request: Request) -> None:
    """Raises NotImplementedError naming what cuDNN lacks for this request, or this machine for cuDNN."""
    if not isinstance(request.mechanism, Softmax) or not is_served(request.mechanism.pattern):
        raise NotImplementedError(
            f'cudnn serves Softmax over full, causal and causal & window, not {request.mechanism}'
        )
    is_full, width = isinstance(request.mechanism.pattern, Full), request.query.shape[3]
    lacks = {
        'GPU on this machine': jax.default_backend() != 'gpu',
        f'inputs of type {request.query.dtype}': request.query.dtype not in (jnp.bfloat16, jnp.float16),
        f'heads {width} wide': width % 8 != 0 or width > WIDEST_HEAD,
        'additive bias': request.bias is not None or request.relative is not None,
        'segments': request.query_segments is not None,
        'attention dropout': request.dropout_rate > 0.0,
        'log-sum-exp that can be merged': request.return_lse,
        'unequal lengths or other positions than 0, 1, ...': not is_full and not is_square(request),
    }
    missing = [name for name, is_asked in lacks.items() if is_asked]
    if missing:
        raise NotImplementedError(f'cudnn has no {", no ".join(missing)}')


def is_square(request: Request) -> bool:
    """Whether query i stands at the position of key i."""
    return request.query.shape[1] == request.key.shape[1] and request.has_default_positions


def is_served(pattern: Pattern) -> bool:
    """Whether cuDNN computes the pattern without a mask."""
    return isinstance(pattern, Full | Causal) or window_radius(pattern) is not None


def window_radius(pattern: Pattern) -> int | None:
    """r of causal & window(r), in either order; None for anything else."""
    match pattern:
        case And(Causal(), Window(radius, 1)) | And(Window(radius, 1), Causal()):
            return radius
    return None
