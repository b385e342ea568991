"""The largest of many numbers without sorting them: exactly so many, of equals those that come first.

Sorting a matrix takes longer than a training step. The k-th largest float32 is found by bisection on its bits instead:
32 passes at most that compare and count, fewer where a number is found that exactly k are not below.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SIGN = np.uint32(0x8000_0000)  # the bit of a float32


def are_largest(arrays: Sequence[Array], count: Array) -> tuple[Array, ...]:
    """Bool arrays of the same shapes, True at the `count` largest of all of them.

    Args:
        arrays: finite float32, of any shapes.
        count: int32, from 0 to the number of all elements.
    """
    threshold = kth_largest(arrays, count)
    reached = tuple(x >= threshold for x in arrays)
    return lax.cond(total(reached) <= count, lambda: reached, lambda: first_of_equals(arrays, threshold, count))


def kth_largest(arrays: Sequence[Array], count: Array) -> Array:
    """float32: a number that `count` of all elements are not below; of equals more. Above all of them for 0."""

    def pattern(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        bit, found, _ = state
        candidate = found | (jnp.uint32(1) << bit.astype(jnp.uint32))
        reached = total([x >= as_float(candidate) for x in arrays])
        is_reached = reached >= count
        return bit - 1, jnp.where(is_reached, candidate, found), jnp.where(is_reached, reached, -1)

    # Bits in the order of the floats that they stand for, the highest first.
    start = jnp.int32(31), jnp.uint32(0), jnp.int32(-1)
    _, found, _ = lax.while_loop(lambda state: (state[0] >= 0) & (state[2] != count), pattern, start)
    return jnp.where(count > 0, as_float(found), jnp.inf)


def as_float(pattern: Array) -> Array:
    """The float32 of a place in the order of all floats, a uint32."""
    bits = jnp.where((pattern & SIGN) > 0, pattern ^ SIGN, ~pattern)
    return lax.bitcast_convert_type(bits, jnp.float32)


def first_of_equals(arrays: Sequence[Array], threshold: Array, count: Array) -> tuple[Array, ...]:
    """True above the threshold, and at as many of those that equal it, in their order, as make `count`."""
    above = [x > threshold for x in arrays]
    missing = count - total(above)
    sizes = [x.size for x in arrays]
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    places = [begin + jnp.arange(x.size).reshape(x.shape) for begin, x in zip(begins, arrays, strict=True)]

    def before(end: Array) -> list[Array]:
        return [(x == threshold) & (place < end) for x, place in zip(arrays, places, strict=True)]

    end = least(lambda end: total(before(end)) >= missing, sum(sizes))
    return tuple(one | other for one, other in zip(above, before(end), strict=True))


def least(holds: Callable[[Array], Array], most: int) -> Array:
    """The least int32 from 0 to `most` for which `holds` is True; it is for `most`, and above any for which it is."""

    def halve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = (low + high) // 2
        is_true = holds(middle)
        return jnp.where(is_true, low, middle + 1), jnp.where(is_true, middle, high)

    return lax.while_loop(lambda state: state[0] < state[1], halve, (jnp.int32(0), jnp.int32(most)))[0]


def total(masks: Sequence[Array]) -> Array:
    """int32: how many are True. Rows are summed in float32, which is quicker on a CPU and exact below 2^24."""
    return sum((jnp.float32(mask).sum(axis=-1).astype(jnp.int32).sum() for mask in masks), jnp.int32(0))


def are_largest_of_each(x: Array, count: Array) -> Array:
    """`are_largest` for each x[i], one after another."""
    return jax.lax.map(lambda one: are_largest([one], count)[0], x)
