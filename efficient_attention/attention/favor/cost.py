"""The cost of FAVOR: features of queries and keys, sums over keys, and sums read by queries."""

from efficient_attention.attention.favor.definition import FAVOR


def multiply_adds(mechanism: FAVOR, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row; where causal also two products over the pairs of each chunk.

    The additions that features need beside their products are left out.
    """
    chunk = min(mechanism.chunk, length) if mechanism.causal else 0
    return heads * length * (4 * mechanism.features * width + chunk * (mechanism.features + width))
