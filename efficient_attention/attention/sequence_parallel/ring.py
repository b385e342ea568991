"""Ring attention: keys travel around the devices, and each device merges its partial results by their log-sum-exps.

The functions run inside `jax.shard_map`. The backward pass sends the keys around once more, recomputes each block, and
sends the gradients of its keys back to their owner. Memory saved between the passes does not grow with the number of
devices. While a block is computed, only the keys of the next block are in transit, so a device holds two shares of
keys.

Block r has output o_r and log-sum-exp l_r. The results are o = sum_r exp(l_r - l) o_r and l = log sum_r exp(l_r).
The cotangents of a block are exp(l_r - l) do and exp(l_r - l) (do o_r - (do o - dl)).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.partial_softmax import Partial, merge_partial_softmax
from efficient_attention.attention.sequence_parallel.ring_steps import Block, RingStep


@dataclasses.dataclass(frozen=True, eq=False)
class RingExchange:
    """The static description of how keys are exchanged between devices and how a block of queries and keys is computed.

    Args:
        axis: the axis of the mesh.
        steps: the steps of the ring, at least one.
        attend: returns the output [B, L, H, K] and the log-sum-exp [B, H, L] of a block. Its arguments: the block's
            indices; local arrays with gradients, whose first leaf has the query's shape; travelling keys with
            gradients; travelling labels of the keys without gradients; local arrays without gradients.
    """

    axis: str
    steps: tuple[RingStep, ...]
    attend: Callable[[Block, Any, Any, Any, Any], Partial]


def run_ring(ring: RingExchange, own: Any, total: Any, compute: Callable[[RingStep, Any, Any], Any]) -> Any:
    """Runs `total = compute(step, keys, total)` for all steps of the ring
    and returns the last total; `own` is this device's keys.
    """
    arriving = exchange_keys(ring, ring.steps[0], own)
    for number, step in enumerate(ring.steps):
        keys = arriving
        if number + 1 < len(ring.steps):
            following = ring.steps[number + 1]
            # Without this barrier the compiler could start all exchanges at once and hold all keys in memory.
            sent, total = jax.lax.optimization_barrier((keys if following.is_relayed else own, total))
            arriving = exchange_keys(ring, following, sent)
        total = compute(step, keys, total)
    return total


def exchange_keys(ring: RingExchange, step: RingStep, keys: Any) -> Any:
    """Returns the keys that this device receives in a step of the ring; zeros if the device has nothing to compute."""
    return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, step.sends), keys) if step.sends else keys


def compute_device_block(
    ring: RingExchange,
    step: RingStep,
    compute: Callable[[Block, Any], Any],
    nothing: Callable[[Any], Any],
    operands: Any,
) -> Any:
    """Returns `compute(block, operands)` for the block of this device in a ring step; returns `nothing(operands)` if
    the device has nothing to compute.
    """
    branches: list[Callable[[Any], Any]] = [functools.partial(compute, block) for block in step.blocks]
    if len(step.blocks) in step.programs:
        branches.append(nothing)
    if len(branches) == 1:
        return branches[0](operands)
    program = jnp.asarray(step.programs, jnp.int32)[jax.lax.axis_index(ring.axis)]
    return jax.lax.switch(program, branches, operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_ring(ring: RingExchange, standing: Any, keys: Any, labels: Any, fixed: Any) -> Partial:
    """Returns the float32 attention output [B, L, H, K] and log-sum-exp [B, H, L]
    of this device's queries over the keys of all devices.
    """
    query = jax.tree.leaves(standing)[0]

    def compute(block: Block, travelled: Any) -> Partial:
        arrived, marks = travelled
        out_BLHK, lse_BHL = ring.attend(block, standing, arrived, marks, fixed)
        return out_BLHK.astype(jnp.float32), lse_BHL

    def nothing(_: Any) -> Partial:
        lse_BLH = jnp.full(query.shape[:3], MASKED, jnp.float32)
        return jnp.zeros(query.shape, jnp.float32), lse_BLH.swapaxes(1, 2)

    def add(step: RingStep, travelled: Any, total: list[Partial]) -> list[Partial]:
        return [merge_partial_softmax([*total, compute_device_block(ring, step, compute, nothing, travelled)])]

    (result,) = run_ring(ring, (keys, labels), [], add)
    return result


def _ring_forward(ring: RingExchange, standing: Any, keys: Any, labels: Any, fixed: Any) -> tuple[Partial, Any]:
    result = attend_ring(ring, standing, keys, labels, fixed)
    return result, (standing, keys, labels, fixed, result)


def _ring_backward(ring: RingExchange, kept: Any, cotangents: Partial) -> tuple[Any, Any, None, None]:
    standing, keys, labels, fixed, (out_BLHK, lse_BHL) = kept
    dout_BLHK, dlse_BHL = cotangents
    delta_BHL = dot_per_head(dout_BLHK, out_BLHK) - dlse_BHL

    def compute(block: Block, travelled: Any) -> Any:
        keys, labels = travelled
        (part_BLHK, part_lse_BHL), pull = jax.vjp(
            lambda standing, keys: ring.attend(block, standing, keys, labels, fixed), standing, keys
        )
        share_BHL = jnp.where(part_lse_BHL > MASKED / 2, jnp.exp(part_lse_BHL - lse_BHL), 0.0)
        dpart_BLHK = (share_BHL.swapaxes(1, 2)[..., None] * dout_BLHK).astype(part_BLHK.dtype)
        dpart_lse_BHL = share_BHL * (dot_per_head(dout_BLHK, part_BLHK.astype(jnp.float32)) - delta_BHL)
        return pull((dpart_BLHK, dpart_lse_BHL))

    def nothing(travelled: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, (standing, travelled[0]))

    def add(step: RingStep, travelled: Any, total: Any) -> Any:
        dstanding, dkeys = compute_device_block(ring, step, compute, nothing, travelled)
        if step.returns:
            dkeys = jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axis, step.returns), dkeys)
        return jax.tree.map(lambda sum_, x: sum_ + x.astype(jnp.float32), total, (dstanding, dkeys))

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (standing, keys))
    total = run_ring(ring, (keys, labels), zeros, add)
    dstanding, dkeys = jax.tree.map(lambda sum_, x: sum_.astype(x.dtype), total, (standing, keys))
    return dstanding, dkeys, None, None


attend_ring.defvjp(_ring_forward, _ring_backward)


def dot_per_head(left_BLHK: Array, right_BLHK: Array) -> Array:
    """Returns the dot products of two arrays over the head width, as [B, H, L]."""
    return (left_BLHK * right_BLHK).sum(axis=-1).swapaxes(1, 2)


def merge_results_of_devices(axis: str, part: Partial) -> Partial:
    """Returns, on every device, the merged attention result over the keys of all devices,
    for queries that all devices have.
    """
    out_pBLHK, lse_pBHL = jax.tree.map(lambda x: jax.lax.all_gather(x, axis), part)
    return merge_partial_softmax(list(zip(out_pBLHK, lse_pBHL, strict=True)))
