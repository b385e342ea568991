"""Defines `draw_operands`, which initialises a mechanism's learned arrays for calls
of `attend` outside of any layer.
"""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.checks import check_mechanism
from efficient_attention.attention.mechanism import Mechanism


def draw_operands(mechanism: Mechanism, heads: int, width: int, rng: Array) -> dict[str, Array]:
    """Returns newly initialised values of a mechanism's learned arrays, by name,
    for the argument `learned` of `attend`.

    The arrays are those that the mechanism declares for `heads` heads of `width`. Running means are points on the unit
    sphere with a last column of zeros. Other arrays are normal with the declared standard deviation.

    Raises:
        ValueError: `mechanism` is not a `Mechanism`, such as a text.
    """
    check_mechanism(mechanism)
    declared = mechanism.learned_operands(heads, width)
    found = {}
    for key, (name, operand) in zip(jax.random.split(rng, max(1, len(declared))), declared.items(), strict=False):
        values = operand.deviation * jax.random.normal(key, operand.shape)
        if operand.is_running_mean:
            points = values[..., :-1]
            unit = points / jnp.linalg.norm(points, axis=-1, keepdims=True)
            values = jnp.concatenate([unit, jnp.zeros_like(values[..., -1:])], axis=-1)
        found[name] = values
    return found
