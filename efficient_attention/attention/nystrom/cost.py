"""The cost of Nystrom attention: landmarks against keys and queries, their mixes, the iterated inverse, the bands."""

from efficient_attention.attention.nystrom.definition import Nystrom
from efficient_attention.attention.nystrom.serve import blocks_of


def multiply_adds(mechanism: Nystrom, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row whose length the landmarks divide; others add a product for the means."""
    count = mechanism.landmarks
    by_token = 4 * length * count * width
    if length % count:
        by_token += 2 * length * count * width
    between = count * count * width + 4 * mechanism.iterations * count**3 + count * count * width
    if mechanism.convolution:
        rows, blocks = blocks_of(length, mechanism.convolution)
        by_token += blocks * rows * (rows + mechanism.convolution - 1) * width
    return heads * (by_token + between)
