"""Selects exactly the k largest of many numbers without sorting; of equal numbers, the first ones are selected.

Sorting a matrix takes longer than a training step. Here bisection on the bits of float32 finds the k-th largest number.
It needs at most 32 passes of comparing and counting, and stops early at a number that exactly k elements reach.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SIGN = np.uint32(0x8000_0000)  # sign bit of a float32


def largest_entries_mask(arrays: Sequence[Array], count: Array) -> tuple[Array, ...]:
    """Returns masks that are True at the `count` largest numbers of all arrays together, in the shapes of the arrays.

    Args:
        arrays: finite float32 arrays of any shapes.
        count: int32, from 0 to the total number of elements.
    """
    threshold = kth_largest(arrays, count)
    reached = tuple(x >= threshold for x in arrays)
    return lax.cond(
        count_true(reached) <= count, lambda: reached, lambda: threshold_mask_exact_count(arrays, threshold, count)
    )


def kth_largest(arrays: Sequence[Array], count: Array) -> Array:
    """Returns a float32 threshold for the `count` largest numbers of all arrays: the `count`-th largest number, or a
    lower number that exactly `count` numbers reach.

    More than `count` numbers reach the threshold if several are equal. If `count` is 0, the threshold is infinite.
    """

    def pattern(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        bit, found, _ = state
        candidate = found | (jnp.uint32(1) << bit.astype(jnp.uint32))
        reached = count_true([x >= float_of_ordered_bits(candidate) for x in arrays])
        is_reached = reached >= count
        return bit - 1, jnp.where(is_reached, candidate, found), jnp.where(is_reached, reached, -1)

    # The bisection starts at the highest bit, because the bit patterns have the same order as their floats.
    start = jnp.int32(31), jnp.uint32(0), jnp.int32(-1)
    _, found, _ = lax.while_loop(lambda state: (state[0] >= 0) & (state[2] != count), pattern, start)
    return jnp.where(count > 0, float_of_ordered_bits(found), jnp.inf)


def float_of_ordered_bits(pattern: Array) -> Array:
    """Returns the float32 whose rank in the order of all float32 numbers is the given uint32."""
    bits = jnp.where((pattern & SIGN) > 0, pattern ^ SIGN, ~pattern)
    return lax.bitcast_convert_type(bits, jnp.float32)


def threshold_mask_exact_count(arrays: Sequence[Array], threshold: Array, count: Array) -> tuple[Array, ...]:
    """Returns masks of exactly `count` elements: all elements above the threshold, then the first elements equal to
    it.
    """
    above = [x > threshold for x in arrays]
    missing = count - count_true(above)
    sizes = [x.size for x in arrays]
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    places = [begin + jnp.arange(x.size).reshape(x.shape) for begin, x in zip(begins, arrays, strict=True)]

    def before(end: Array) -> list[Array]:
        return [(x == threshold) & (place < end) for x, place in zip(arrays, places, strict=True)]

    end = least_by_binary_search(lambda end: count_true(before(end)) >= missing, sum(sizes))
    return tuple(one | other for one, other in zip(above, before(end), strict=True))


def least_by_binary_search(holds: Callable[[Array], Array], most: int) -> Array:
    """Returns the smallest integer from 0 to `most` for which the function `holds` returns True, by binary search.

    `holds` must be True for `most`, and must stay True above any number for which it is True.
    """

    def halve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = (low + high) // 2
        is_true = holds(middle)
        return jnp.where(is_true, low, middle + 1), jnp.where(is_true, middle, high)

    return lax.while_loop(lambda state: state[0] < state[1], halve, (jnp.int32(0), jnp.int32(most)))[0]


def count_true(masks: Sequence[Array]) -> Array:
    """Returns the total number of True elements in all masks, as int32.

    Rows are summed in float32, which is faster on a CPU and exact below 2^24.
    """
    return sum((jnp.float32(mask).sum(axis=-1).astype(jnp.int32).sum() for mask in masks), jnp.int32(0))


def largest_entries_mask_per_layer(x: Array, count: Array) -> Array:
    """Returns, for each slice x[i] separately, the mask of its `count` largest numbers."""
    return jax.lax.map(lambda one: largest_entries_mask([one], count)[0], x)
