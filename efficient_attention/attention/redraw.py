"""The key from which mechanisms draw at a training step: LSH its rotations, FAVOR its features."""

import jax
from jax import Array
from jaxtyping import Int


def redraw_key(rng: Array, step: int | Int[Array, ''], every: int) -> Array:
    """The key of what is drawn at a training step: a new one each `every` steps, always the first where it is 0."""
    return jax.random.fold_in(rng, step // every if every else 0)
