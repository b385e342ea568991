"""Sorts small integers stably along the last axis, and moves arrays into a sorted order and back."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, Shaped


def stable_order(numbers: Int[Array, '*rows L'], bound: int) -> Int[Array, '*rows L']:
    """Returns the permutation that stably sorts integers in [0, bound) along the last axis; equal integers keep their
    order.

    Each integer is combined with its index into one number. Sorting these is several times faster than sorting pairs
    and takes half the memory. If integer and index do not fit into 32 bits together, the sort goes digit by digit.
    """
    length = numbers.shape[-1]
    base, weight = 2**32 // length, 1
    places = jax.lax.broadcasted_iota(jnp.uint32, numbers.shape, numbers.ndim - 1)
    order = places.astype(jnp.int32)
    while weight < bound or weight == 1:
        digits = take_along_rows(numbers, order) if weight > 1 else numbers
        digits = (digits // jnp.int32(weight)) % jnp.int32(min(base, 2**31 - 1))
        carried = jnp.sort(digits.astype(jnp.uint32) * jnp.uint32(length) + places, axis=-1)
        by_digit = (carried % jnp.uint32(length)).astype(jnp.int32)
        order = take_along_rows(order, by_digit) if weight > 1 else by_digit
        weight *= base
    return order


def segment_ranks(segments_BL: Array) -> Int[Array, 'B L']:
    """Returns each token's segment rank: 0, 1, ... in the order of the row's segment numbers, and L for padding."""
    length = segments_BL.shape[1]
    order_BL = jnp.argsort(segments_BL, axis=-1, stable=True).astype(jnp.int32)
    sorted_BL = take_along_rows(segments_BL, order_BL)
    ranks_BL = jnp.cumsum(jnp.diff(sorted_BL, axis=-1, prepend=sorted_BL[:, :1]) != 0, axis=-1, dtype=jnp.int32)
    return jnp.where(segments_BL == 0, length, take_along_rows(ranks_BL, invert_permutation(order_BL)))


def invert_permutation(order: Int[Array, '*rows L']) -> Int[Array, '*rows L']:
    """Returns the inverse of permutations along the last axis."""

    def invert_one(order_L: Array) -> Array:
        places_L = jnp.arange(order_L.shape[0], dtype=jnp.int32)
        return jnp.zeros_like(order_L).at[order_L].set(places_L, unique_indices=True, mode='promise_in_bounds')

    return vmap_leading_axes(invert_one, order.ndim - 1)(order)


def take_along_rows(x: Shaped[Array, '...'], index: Int[Array, '*rows m']) -> Shaped[Array, '...']:
    """Returns the entries of `x` [*rows, L, *rest] at the indices [*rows, m] along axis L: [*rows, m, *rest]."""
    return vmap_leading_axes(lambda x, index: x.at[index].get(mode='promise_in_bounds'), index.ndim - 1)(x, index)


def vmap_leading_axes(fn: Callable[..., Array], axes: int) -> Callable[..., Array]:
    """Returns the function `fn` mapped by `jax.vmap` over the first `axes` axes of its arguments."""
    for _ in range(axes):
        fn = jax.vmap(fn)
    return fn
