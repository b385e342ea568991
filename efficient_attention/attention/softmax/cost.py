"""The cost of softmax attention over tiles: two products over every pair of the tiles that it keeps."""

import functools

import numpy as np

from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import listing, passes, tile_table
from efficient_attention.attention.softmax.definition import Softmax


def multiply_adds(mechanism: Softmax, length: int, heads: int, width: int) -> int:
    """The multiply-adds of one batch row, with those of pairs that the pattern forbids inside tiles that it keeps."""
    patterns = head_patterns(mechanism.pattern.for_keys(length), heads)
    pairs = sum(kept_pairs(pattern, length, length, mechanism.tile) for pattern in patterns)
    return 2 * width * pairs * (heads // len(patterns))


@functools.lru_cache(maxsize=256)
def kept_pairs(pattern: Pattern, queries: int, keys: int, size: int) -> int:
    """How many pairs of positions from 0 on lie in the tiles of `size` by `size` that one head's pattern keeps."""
    positions = [np.arange(number) for number in (queries, keys)]
    sizes = [np.diff(np.append(np.arange(0, len(numbers), size), len(numbers))) for numbers in positions]
    total = 0
    for pass_pattern, order in passes(pattern):
        queries_L, keys_M = (numbers[listing(numbers, order)] for numbers in positions)
        table = tile_table(pass_pattern, queries_L, keys_M, size, order)
        total += int((np.repeat(sizes[0], table.counts) * sizes[1][table.keys]).sum())
    return total
