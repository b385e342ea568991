"""Chooses the pattern of one layer while the program runs, so that layers with different patterns share a program."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.patterns import Pattern


def layer_index(pattern: Pattern, layer: Array | int | None) -> Int[Array, ''] | None:
    """Returns the int32 index of layer number `layer` among the layers for which a pattern stands; None for the pattern
    of a single layer.

    Raises:
        ValueError: the pattern stands for several layers, and `layer` is None.
    """
    if not pattern.layers:
        return None
    if layer is None:
        raise ValueError(f'{pattern} stands for several layers: an attention call needs the number of its layer')
    return (jnp.asarray(pattern.layers, jnp.int32) < layer).sum(dtype=jnp.int32)


def compute_for_layer(
    compute: Callable[[tuple[Pattern, ...]], Array], patterns: tuple[Pattern, ...], index: Int[Array, ''] | None
) -> Array:
    """Returns `compute(patterns)` for the patterns of the layer with this index.

    The program contains the computation of each layer and runs one of them. All results must have the same shape.

    Args:
        compute: computes an array, such as a mask, from the patterns of a single layer.
        patterns: the patterns of heads, which may stand for several layers.
        index: from `layer_index`; None if the patterns are the patterns of a single layer.
    """
    if index is None:
        return compute(patterns)
    by_layer = zip(*(pattern.by_layer() for pattern in patterns), strict=True)
    return jax.lax.switch(index, [lambda of_layer=of_layer: compute(of_layer) for of_layer in by_layer])
