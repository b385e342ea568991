"""The dense form, all batch rows at once: the definition's formulas, with products of the input's own dtype.

Statistics are float32 whatever the input. All scores [B, H, L, M] exist at once, so this is for short rows;
query_chunks.py takes some queries at a time, and on a CPU softmax has the loop of softmax/dense_loop.py.
"""

from collections.abc import Callable
from typing import Any

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.logits.definition import weights_of
from efficient_attention.attention.logits.over_pattern import Weights
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import combine_values, drop_weights

Weigh = Callable[[Request, Any, Any], Weights]  # from a request, the dtype of products and their precision


def serve(request: Request, weigh: Weigh = weights_of) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """Output in the query's dtype and float32 log-sum-exp, with every option of a request."""
    dtype = request.query.dtype
    weights_BHLM, lse_BHL = weigh(request, dtype, None)
    out_BLHK = combine_values(drop_weights(weights_BHLM, request), request.value, dtype, None)
    return out_BLHK.astype(dtype), lse_BHL
