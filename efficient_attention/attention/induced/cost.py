"""The cost of induced attention: points against keys, keys and values mixed, queries against points, and their mix."""

from efficient_attention.attention.induced.definition import Induced


def multiply_adds(mechanism: Induced, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row."""
    return 5 * heads * length * mechanism.points * width
