"""Dense softmax attention for training at short lengths: the reference's formulas, products in the input's own dtype.

Statistics stay in float32 and the result is tested equal to the reference. It holds [B, H, L, M] once in the forward
pass.
"""

from jax import Array

from efficient_attention.attention.reference import attend_dense
from efficient_attention.attention.request import Request


def serve(request: Request) -> tuple[Array, Array]:
    """Serves `Softmax` with any pattern, segments, bias, dropout and grouped heads."""
    return attend_dense(request, request.query.dtype)
