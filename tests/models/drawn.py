"""Makes modules with random NumPy parameters: the usual initialisation would compile dozens of programs."""

from collections.abc import Callable

import jax
import numpy as np
from flax import nnx


def drawn(make: Callable[[], nnx.Module], *, std: float = 0.3) -> tuple[nnx.GraphDef, dict]:
    """Returns a module's graph and random parameters; no bias is zero, and vectors, such as norm scales, are near 1."""
    graph, shapes = nnx.split(nnx.eval_shape(make))
    rng = np.random.default_rng(1)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        numbers = rng.normal(0.0, std, leaf.shape) + (len(leaf.shape) == 1)
        return jax.device_put(numbers.astype(leaf.dtype))  # jnp.asarray would compile a program for each shape.

    return graph, jax.tree.map(draw, nnx.to_pure_dict(shapes))
