"""How much arithmetic softmax attention over tiles takes: two products over every pair of the tiles that it keeps."""

import numpy as np

from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import listing, passes, tile_table
from efficient_attention.attention.softmax.definition import Softmax


def multiply_adds(mechanism: Softmax, length: int, heads: int, width: int) -> int:
    """Of one row; those pairs included that the pattern forbids inside a tile that it keeps in part."""
    patterns = head_patterns(mechanism.pattern.for_keys(length), heads)
    pairs = sum(kept_pairs(pattern, length, mechanism.tile) for pattern in patterns)
    return 2 * width * pairs * (heads // len(patterns))


def kept_pairs(pattern: Pattern, length: int, size: int) -> int:
    """Pairs of positions in the tiles of `size` that one head's pattern keeps; the last tile ends where they end."""
    positions = np.arange(length)
    sizes = np.diff(np.append(np.arange(0, length, size), length))
    total = 0
    for part, order in passes(pattern):
        listed = positions[listing(positions, order)]
        table = tile_table(part, listed, listed, size, order)
        total += int((np.repeat(sizes, table.counts) * sizes[table.keys]).sum())
    return total
