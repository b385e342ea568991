"""Chooses the pattern of a layer while the program runs, so that layers with different patterns share one program.

A pattern of several layers is the result of `Pattern.for_layer` for a tuple of layer numbers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.patterns import Pattern


def layer_index(pattern: Pattern, layer: Array | int | None) -> Int[Array, ''] | None:
    """Returns the int32 index of the layer number `layer` in `pattern.layers`; None for the pattern of a single layer.

    Raises:
        ValueError: the pattern has several layers, and `layer` is None.
    """
    if not pattern.layers:
        return None
    if layer is None:
        raise ValueError(f'{pattern} covers several layers; pass layer=<number> to the attention call')
    return (jnp.asarray(pattern.layers, jnp.int32) < layer).sum(dtype=jnp.int32)


def compute_for_layer(
    compute: Callable[[tuple[Pattern, ...]], Array], patterns: tuple[Pattern, ...], index: Int[Array, ''] | None
) -> Array:
    """Returns `compute` of the patterns of one layer, which is chosen while the program runs.

    The program contains the computations of all layers and runs one of them. All results must have the same shape.

    Args:
        compute: computes an array, such as a mask, from the patterns of heads of a single layer.
        patterns: one pattern for each head, or one for all heads; each may be a pattern of several layers.
        index: the result of `layer_index`; None if the patterns are already those of a single layer.
    """
    if index is None:
        return compute(patterns)
    by_layer = zip(*(pattern.by_layer() for pattern in patterns), strict=True)
    return jax.lax.switch(index, [lambda of_layer=of_layer: compute(of_layer) for of_layer in by_layer])
