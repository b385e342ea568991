"""Applies a function to all steps of several groups in one loop, which reads large arrays in place and writes their
gradients in place.

A loop over steps inside a loop over groups would copy a group's arrays into the inner loop and their gradient out of
it.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

Arrays = dict[str, Array]
# Arguments: arrays for all steps, arrays of the step's group, arrays of the step, index of the step in its group.
Compute = Callable[[Arrays, Arrays, Arrays, Array], Any]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def map_group_steps(compute: Compute, fixed: Arrays, of_groups: Arrays, of_steps: Arrays) -> Any:
    """Returns the results of `compute` for all steps of all groups, [groups * steps, ...];
    the backward pass recomputes each step.

    Args:
        compute: returns the result of a step; it closes over no array.
        fixed: arrays that all steps read; they get no gradient.
        of_groups: arrays [groups, ...]; their gradient is the sum over a group's steps.
        of_steps: arrays [groups, steps, ...].
    """
    groups, steps = group_and_step_counts(of_steps)

    def one(numbered: tuple[Int[Array, ''], Arrays]) -> Any:
        number, parts = numbered
        return compute(fixed, take_group(of_groups, number // steps), parts, number % steps)

    return jax.lax.map(one, (jnp.arange(groups * steps), merge_group_step_axes(of_steps)))


def forward(compute: Compute, fixed: Arrays, of_groups: Arrays, of_steps: Arrays) -> tuple[Any, Any]:
    """Returns the results of `map_group_steps`, and its arguments for the backward pass."""
    return map_group_steps(compute, fixed, of_groups, of_steps), (fixed, of_groups, of_steps)


def backward(compute: Compute, kept: tuple[Arrays, Arrays, Arrays], gradients: Any) -> tuple[None, Arrays, Arrays]:
    """Returns the gradients of the arrays of groups, summed in place over each group's steps, and the gradients of the
    arrays of steps.
    """
    fixed, of_groups, of_steps = kept
    groups, steps = group_and_step_counts(of_steps)

    def one(sums: Arrays, numbered: tuple[Int[Array, ''], Arrays, Any]) -> tuple[Arrays, Arrays]:
        number, parts, of_result = numbered
        group = number // steps

        def computed(group: Arrays, parts: Arrays) -> Any:
            return compute(fixed, group, parts, number % steps)

        _, pull = jax.vjp(computed, take_group(of_groups, group), parts)
        of_this_group, of_parts = pull(of_result)
        return {name: total.at[group].add(of_this_group[name]) for name, total in sums.items()}, of_parts

    numbered = (jnp.arange(groups * steps), merge_group_step_axes(of_steps), gradients)
    sums, of_parts = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, of_groups), numbered)
    return None, sums, {name: x.reshape(of_steps[name].shape) for name, x in of_parts.items()}


map_group_steps.defvjp(forward, backward)


def group_and_step_counts(of_steps: Arrays) -> tuple[int, int]:
    """Returns the number of groups, and the number of steps in each group."""
    groups, steps = next(iter(of_steps.values())).shape[:2]
    return groups, steps


def merge_group_step_axes(of_steps: Arrays) -> Arrays:
    """Returns the steps' arrays [groups, steps, ...] as [groups * steps, ...]."""
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in of_steps.items()}


def take_group(of_groups: Arrays, group: Int[Array, '']) -> Arrays:
    """Returns the arrays of one group, from arrays [groups, ...]."""
    return {name: x[group] for name, x in of_groups.items()}
