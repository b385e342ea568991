"""The cost of softmax attention over tiles: two products over every pair of the tiles that it keeps."""

import numpy as np

from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import listing, passes, tile_table
from efficient_attention.attention.softmax.definition import Softmax


def multiply_adds(mechanism: Softmax, length: int, heads: int, width: int) -> int:
    """The multiply-adds of one batch row, with those of pairs that the pattern forbids inside tiles that it keeps."""
    patterns = head_patterns(mechanism.pattern.for_keys(length), heads)
    pairs = sum(kept_pairs(pattern, length, mechanism.tile) for pattern in patterns)
    return 2 * width * pairs * (heads // len(patterns))


def kept_pairs(pattern: Pattern, length: int, size: int) -> int:
    """How many pairs of positions lie in the tiles of `size` that one head's pattern keeps, by `length` positions."""
    positions = np.arange(length)
    sizes = np.diff(np.append(np.arange(0, length, size), length))
    total = 0
    for pass_pattern, order in passes(pattern):
        listed = positions[listing(positions, order)]
        table = tile_table(pass_pattern, listed, listed, size, order)
        total += int((np.repeat(sizes, table.counts) * sizes[table.keys]).sum())
    return total
