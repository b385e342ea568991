"""Attention over lists of tiles as one differentiable function, and what its kernels need: which calls they serve, and
rows padded to whole tiles and heads padded to 64 or 128 numbers.

The log-sum-exp is differentiable: its gradient is one more term of the gradient of each logit. So results over disjoint
sets of keys merge exactly.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.block_sparse import backward, forward
from efficient_attention.attention.block_sparse.lists import TileLists, TileSizes
from efficient_attention.attention.block_sparse.tiles import LOG2E, KernelOptions, Tokens
from efficient_attention.attention.block_sparse.work import work_of
from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.devices import device_tuning, is_hopper
from efficient_attention.attention.kernel_work import stating_work
from efficient_attention.attention.request import Request
from efficient_attention.errors import require

WIDTHS = (64, 128)  # widths of heads in the kernels; narrower heads are padded with zeros
COMPUTED = 128  # number of positions in a tile that a program computes
NO_KEYS = 1e30  # log-sum-exp of a query without keys in the backward kernels: its weights become exp2(-1e30) = 0


def tile_sizes() -> tuple[TileSizes, TileSizes]:
    """Returns the tiles of the kernels that compute tiles of queries, and of the kernel that computes tiles of keys.

    Raises:
        InputError: the device's constants for tiles are outside the ranges that `DeviceTuning` documents.
    """
    visited, stages = device_tuning().mosaic_tile, device_tuning().mosaic_stages
    require(visited in (64, 128), 'device constant mosaic_tile', visited, '64 or 128')
    require(2 <= stages <= 4, 'device constant mosaic_stages', stages, 'from 2 to 4')
    return TileSizes(COMPUTED, visited), TileSizes(visited, COMPUTED, by_key=True)


def lacks_of_kernels(request: Request) -> dict[str, bool]:
    """Returns for each feature that the kernels or this machine lack whether the request needs it."""
    width = request.query.shape[3]
    return {
        'NVIDIA Hopper GPU on this machine': not (device_tuning().has_cudnn and is_hopper()),
        f'inputs of type {request.query.dtype}': request.query.dtype not in (jnp.bfloat16, jnp.float16),
        f'support for heads of width {width}': width > WIDTHS[-1],
        'additive bias': request.bias is not None or request.relative is not None,
        'additive scores': request.additive is not None,
    }


def pad_to_tiles(x: Shaped[Array, '...'], axis: int, fill: int = 0) -> Array:
    """Returns an array padded along an axis to whole tiles."""
    more = -x.shape[axis] % COMPUTED
    return jnp.pad(x, [(0, more * (place == axis)) for place in range(x.ndim)], constant_values=fill)


def pad_vectors(x_BLHK: Array) -> Array:
    """Returns queries, keys or values with rows padded to whole tiles, and heads to a width in `WIDTHS`."""
    width = x_BLHK.shape[3]
    wider = next(size for size in WIDTHS if size >= width) - width
    return pad_to_tiles(jnp.pad(x_BLHK, ((0, 0), (0, 0), (0, 0), (0, wider))), 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_lists(
    options: KernelOptions,
    q_BLHK: Array,
    k_BMGK: Array,
    v_BMGK: Array,
    tokens: Tokens,
    lists: TileLists,
    lists_by_key: TileLists,
) -> tuple[Array, Array]:
    """Returns the output [B, L, H, K] and the log-sum-exp [B, H, L] over the listed tiles; all arrays are padded."""
    return attend_lists_forward(options, q_BLHK, k_BMGK, v_BMGK, tokens, lists, lists_by_key)[0]


def attend_lists_forward(
    options: KernelOptions,
    q_BLHK: Array,
    k_BMGK: Array,
    v_BMGK: Array,
    tokens: Tokens,
    lists: TileLists,
    lists_by_key: TileLists,
) -> tuple[Any, Any]:
    """Returns the results of `attend_lists`, and the values saved for its backward pass."""
    with stating_work(work_of('forward', options, tokens, q_BLHK, k_BMGK)):
        out, lse2_BHL = forward.attend_queries(options, lists, tokens, q_BLHK, k_BMGK, v_BMGK)
    lse_BHL = jnp.where(lse2_BHL > MASKED / 2, lse2_BHL * (1.0 / LOG2E), MASKED)
    return (out, lse_BHL), (q_BLHK, k_BMGK, v_BMGK, tokens, lists, lists_by_key, out, lse2_BHL)


def attend_lists_backward(options: KernelOptions, saved: Any, cotangents: tuple[Array, Array]) -> tuple[Any, ...]:
    """Returns the gradients of queries, keys and values; tokens and lists have no gradient."""
    q, k, v, tokens, lists, lists_by_key, out, lse2_BHL = saved
    dout, dlse_BHL = cotangents
    delta_BLH = (dout.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1)
    numbers = {
        'lse': jnp.where(lse2_BHL > MASKED / 2, lse2_BHL, NO_KEYS),
        'delta': delta_BLH.swapaxes(1, 2) - dlse_BHL.astype(jnp.float32),
    }
    arrays = q, dout.astype(q.dtype), k, v
    with stating_work(work_of('dq', options, tokens, q, k)):
        dq = backward.query_gradients(options, lists, tokens, arrays, numbers)
    with stating_work(work_of('dkv', options, tokens, q, k)):
        dk, dv = backward.key_gradients(options, lists_by_key, tokens, arrays, numbers)
    return dq, dk, dv, None, None, None


attend_lists.defvjp(attend_lists_forward, attend_lists_backward)
