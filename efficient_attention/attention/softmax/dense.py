"""The backend `dense`, all batch rows at once: the definition's formulas, with products of the input's own dtype.

Statistics are float32 whatever the input. All scores [B, H, L, M] exist at once, so this is for short rows; on a CPU
the loop of dense_loop.py may take its place.
"""

from jax import Array
from jaxtyping import Float

from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.definition import allowed_pairs, scaled_logits
from efficient_attention.attention.weights import combine_values, drop_weights, masked_softmax


def serve(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Output in the query's dtype and float32 log-sum-exp, with every option of a request."""
    dtype = request.query.dtype
    weights_BHLM, lse_BHL = masked_softmax(scaled_logits(request, dtype, None), allowed_pairs(request))
    out_BLHK = combine_values(drop_weights(weights_BHLM, request), request.value, dtype, None)
    return out_BLHK.astype(dtype), lse_BHL
