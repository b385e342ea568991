"""Modules whose parameters are random numbers of NumPy: to start them as users do would compile dozens of programs."""

from collections.abc import Callable

import jax
import numpy as np
from flax import nnx


def drawn(make: Callable[[], nnx.Module], *, std: float = 0.3) -> tuple[nnx.GraphDef, dict]:
    """The graph of a module and its parameters: no bias is zero, and vectors, as scales of a norm are, lie around 1."""
    graph, shapes = nnx.split(nnx.eval_shape(make))
    rng = np.random.default_rng(1)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        numbers = rng.normal(0.0, std, leaf.shape) + (len(leaf.shape) == 1)
        return jax.device_put(numbers.astype(leaf.dtype))  # jnp.asarray would compile a program for each shape

    return graph, jax.tree.map(draw, nnx.to_pure_dict(shapes))
