"""Loops over the chunks of LSH attention; each loop step computes as many neighbouring chunks as suit the device.

Axes as in `sorted_rounds.py`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.lsh.sorted_rounds import HashRounds, LSHLayout
from efficient_attention.attention.lsh.windows import (
    LSHMaskInputs,
    cut_into_chunks,
    make_window,
    slice_rounds_and_chunks,
    slice_start_indices,
)


def chunks_per_step(layout: LSHLayout, rows: int, rounds: int) -> tuple[int, int]:
    """Returns how many hash rounds and how many neighbouring chunks one loop step computes,
    for `rows` batch rows x heads.

    A step takes chunks of one round first, because each chunk's queries also read the chunk before it.
    """
    at_most = max(1, device_tuning().lsh_step_bytes // (4 * rows * layout.size**2 * (1 + layout.previous_chunks)))
    chunks = largest_divisor(layout.chunk_count, at_most)
    return largest_divisor(rounds, at_most // chunks) if chunks == layout.chunk_count else 1, chunks


def largest_divisor(number: int, at_most: int) -> int:
    """Returns the largest divisor of `number` that is at most the positive number `at_most`."""
    return max(divisor for divisor in range(1, min(at_most, number) + 1) if number % divisor == 0)


def loop_over_windows(step: Any, layout: LSHLayout, rounds: HashRounds, mask_inputs: LSHMaskInputs, start: Any) -> Any:
    """Returns the final carry of a loop `carry = step(window, carry)` over the chunks
    of the given hash rounds; `start` is the first carry.
    """
    batch, heads, total = rounds.order_BHTs.shape[:3]
    count = chunks_per_step(layout, batch * heads, total)
    chunked = cut_into_chunks(rounds, layout)
    steps = layout.chunk_count // count[1]  # number of loop steps per hash round

    def body(number: Int[Array, ''], carry: Any) -> Any:
        place = number // steps * count[0], number % steps * count[1]
        return step(make_window(place, count, layout, chunked, mask_inputs), carry)

    return jax.lax.fori_loop(0, total // count[0] * steps, body, start)


def reduce_over_rounds(fn: Any, combine: Any, start: Any, layout: LSHLayout, rounds: HashRounds) -> Any:
    """Returns `fn(rounds)`; with `sequential`, calls `fn` for one hash round at a time
    and combines the results, starting with `start`.
    """
    if not layout.sequential:
        return fn(rounds)

    def step(carry: Any, one_round: HashRounds) -> tuple[Any, None]:
        one_round = jax.tree.map(lambda x: x[None] if x.ndim == 0 else x[:, :, None], one_round)
        return combine(carry, fn(one_round)), None

    by_round = jax.tree.map(lambda x: x if x.ndim == 1 else jnp.moveaxis(x, 2, 0), rounds)
    return jax.lax.scan(step, start, by_round)[0]


def put_chunks(
    buffer: Float[Array, 'B H T n *rest'], x: Float[Array, 'B H _ _ *rest'], start: tuple[Array, Array]
) -> Float[Array, 'B H T n *rest']:
    """Returns `buffer` [B, H, T, n, ...] with `x` written into it, beginning at the hash round and chunk that `start`
    gives.
    """
    return jax.lax.dynamic_update_slice(buffer, x, slice_start_indices(start, x.ndim), allow_negative_indices=False)


def add_chunks(
    buffer: Float[Array, 'B H T n *rest'], x: Float[Array, 'B H _ _ *rest'], start: tuple[Array, Array]
) -> Float[Array, 'B H T n *rest']:
    """Returns `buffer` [B, H, T, n, ...] with `x` added to it, beginning at the hash round and chunk that `start`
    gives.
    """
    return put_chunks(buffer, slice_rounds_and_chunks(buffer, start, (x.shape[2], x.shape[3])) + x, start)
