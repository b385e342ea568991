"""The backend `jax_nn`: softmax attention on `jax.nn.dot_product_attention`, for what that function serves exactly."""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.mechanism import refuse
from efficient_attention.attention.patterns import Causal, Full
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.definition import allowed_pairs, pattern_of


def serve(request: Request) -> tuple[Array, None]:
    """Serves `Softmax` over `Full` and `Causal` with segments and bias; neither dropout nor log-sum-exp."""
    check_served(request)
    allowed = allowed_pairs(request)
    with jax.numpy_dtype_promotion('standard'):  # the library mixes bfloat16 with float32 inside
        out = jax.nn.dot_product_attention(
            request.query, request.key, request.value, bias=request.bias, mask=allowed, implementation='xla'
        )
    # The library averages all values where a query has no key; the contract says zeros.
    has_key_bL11 = allowed.any(axis=-1)[:, 0, :, None, None]
    return jnp.where(has_key_bL11, out, jnp.zeros_like(out)), None


def check_served(request: Request) -> None:
    """Raises NotImplementedError naming what the library lacks for this request."""
    if pattern_of(request) not in (Full(), Causal()):
        raise NotImplementedError(f'jax_nn serves Softmax over full and causal, not {request.mechanism}')
    lacks = {
        'bias as a function of positions': callable(request.bias),
        'relative term': request.relative is not None,
        'attention dropout': request.dropout is not None,
        # It returns the log-sum-exp in the input dtype and without a gradient.
        'log-sum-exp that can be merged': request.return_lse,
    }
    refuse('jax_nn', lacks)
