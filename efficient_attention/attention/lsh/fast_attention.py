"""Computes LSH attention in time and memory linear in the length; lsh/definition.py defines the result.

The loops read a few neighbouring chunks of the sorted order at a time. They gather the vectors of those chunks and of
the chunk before, and take a softmax over both. Each round's sums stay relative to its maximum until the rounds are
merged. The backward loop recomputes the weights from the merged maximum and total, as FlashAttention does (Dao et al.
2022, arXiv 2205.14135): nothing of size L x chunk is stored, and rounds do not depend on each other. Results return to
the order of positions by gathering, never by scattering sums, so the same inputs give the same bits.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.choice_log import Refusal, note_choice
from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.lsh import kernel_rounds
from efficient_attention.attention.lsh.definition import layout_from_request, unit_keys
from efficient_attention.attention.lsh.forward_pass import softmax_sums_of_all_rounds
from efficient_attention.attention.lsh.gradients import BackwardQueryInputs, gradients_of_all_rounds
from efficient_attention.attention.lsh.sorted_rounds import HashRounds, LSHLayout, make_rounds
from efficient_attention.attention.lsh.windows import LSHMaskInputs, make_mask_inputs, make_row_vectors
from efficient_attention.attention.mechanism import UnsupportedError
from efficient_attention.attention.request import Request


def compute_attention(request: Request) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Returns the output of LSH attention and its log-sum-exp; supports segments, positions and dropout.

    The backend 'auto' runs on the kernels of `mosaic` where they serve. Bias, grouped heads and cross-attention raise
    NotImplementedError.
    """
    layout = layout_from_request(request)
    if request.backend == 'auto' and device_tuning().has_cudnn and uses_kernels(request, layout):
        return kernel_rounds.attend_rounds(request, layout)
    rounds, buckets_BHTL = make_rounds(request, layout)
    mask_inputs = make_mask_inputs(request, layout, rounds, buckets_BHTL)
    q_BHLK, v_BHLK = request.query.swapaxes(1, 2), request.value.swapaxes(1, 2)
    out_BHLK, lse_BHL = attend_rounds(layout, q_BHLK, v_BHLK, rounds, mask_inputs)
    return out_BHLK.swapaxes(1, 2), lse_BHL


def uses_kernels(request: Request, layout: LSHLayout) -> bool:
    """Returns whether the kernels of `mosaic` support a request, and notes the choice."""
    try:
        kernel_rounds.check_supported(request, layout)
    except UnsupportedError as error:
        note_choice('blocked', 'lsh', {'mosaic': Refusal(str(error), error.features)})
        return False
    note_choice('mosaic', 'lsh', {})
    return True


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_rounds(
    layout: LSHLayout, q_BHLK: Array, v_BHLK: Array, rounds: HashRounds, mask_inputs: LSHMaskInputs
) -> tuple[Float[Array, 'B H L K'], Float[Array, 'B H L']]:
    """Returns the output of LSH attention in the query's dtype, and the log-sum-exp over all hash rounds."""
    return forward(layout, q_BHLK, v_BHLK, rounds, mask_inputs)[0]


def forward(
    layout: LSHLayout, q_BHLK: Array, v_BHLK: Array, rounds: HashRounds, mask_inputs: LSHMaskInputs
) -> tuple[Any, Any]:
    """Returns the results of `attend_rounds`, and the values saved for its backward pass."""
    sums = softmax_sums_of_all_rounds(layout, make_row_vectors(q_BHLK, v_BHLK), rounds, mask_inputs)
    has_key_BHL = sums.total > 0.0
    total_BHL = jnp.where(has_key_BHL, sums.total, 1.0)
    out_BHLK = (sums.out / total_BHL[..., None]).astype(q_BHLK.dtype)
    lse_BHL = jnp.where(has_key_BHL, sums.maximum + jnp.log(total_BHL), MASKED)
    # The maximum and the total are saved, because weights from a log-sum-exp near -1e5 would have a 0.4 % error.
    statistics = jnp.where(has_key_BHL, sums.maximum, 0.0), 1.0 / total_BHL
    return (out_BHLK, lse_BHL), (q_BHLK, v_BHLK, rounds, mask_inputs, out_BHLK, statistics)


def backward(layout: LSHLayout, kept: Any, cotangents: tuple[Array, Array]) -> tuple[Array, Array, None, None]:
    """Returns the gradients of queries and values for LSH attention, in the dtypes of queries and values."""
    q_BHLK, v_BHLK, rounds, mask_inputs, out_BHLK, (maximum_BHL, per_total_BHL) = kept
    dout_BHLK, dlse_BHL = cotangents
    delta_BHL = (dout_BHLK.astype(jnp.float32) * out_BHLK.astype(jnp.float32)).sum(axis=-1) - dlse_BHL
    by_query = BackwardQueryInputs(dout_BHLK, jnp.stack([maximum_BHL, per_total_BHL, delta_BHL], axis=-1))
    total = gradients_of_all_rounds(layout, make_row_vectors(q_BHLK, v_BHLK), rounds, mask_inputs, by_query)
    _, from_keys = jax.vjp(unit_keys, q_BHLK.astype(jnp.float32))
    dq_BHLK = total.dq_BHLK + from_keys(total.dk_BHLK)[0]
    return dq_BHLK.astype(q_BHLK.dtype), total.dv_BHLK.astype(v_BHLK.dtype), None, None


attend_rounds.defvjp(forward, backward)
