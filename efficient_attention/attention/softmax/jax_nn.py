"""The backend `jax_nn`: softmax attention by `jax.nn.dot_product_attention`,
only for calls that this function computes exactly.
"""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.logits.definition import allowed_pairs, request_pattern
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.patterns import Causal, Full
from efficient_attention.attention.request import Request


def compute_attention(request: Request) -> tuple[Array, None]:
    """Returns softmax attention's output, computed by `jax.nn`, without a log-sum-exp; supports the full and the causal
    pattern, segments and a bias.
    """
    check_supported(request)
    allowed_bhLM = allowed_pairs(request)
    with jax.numpy_dtype_promotion('standard'):  # the JAX function mixes bfloat16 with float32 inside
        out_BLHK = jax.nn.dot_product_attention(
            request.query, request.key, request.value, bias=request.bias, mask=allowed_bhLM, implementation='xla'
        )
    # For a query without allowed keys, the JAX function averages all values, but `attend` must return zeros.
    has_key_bL11 = allowed_bhLM.any(axis=-1)[:, 0, :, None, None]
    return jnp.where(has_key_bL11, out_BLHK, jnp.zeros_like(out_BLHK)), None


def check_supported(request: Request) -> None:
    """Raises a NotImplementedError that names each feature of this attention request that
    `jax.nn.dot_product_attention` lacks.
    """
    if request_pattern(request) not in (Full(), Causal()):
        raise NotImplementedError(f'jax_nn supports Softmax over full and causal, not {request.mechanism}')
    lacks = {
        'bias as a function of positions': callable(request.bias),
        'additive scores': request.additive is not None,
        'relative term': request.relative is not None,
        'attention dropout': request.dropout is not None,
        # The JAX function returns the log-sum-exp in the input dtype and without a gradient.
        'log-sum-exp that can be merged': request.return_lse,
    }
    raise_unsupported('jax_nn', lacks)
