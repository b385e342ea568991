"""How much arithmetic does a mechanism take? Multiply-adds of its matrix products in self-attention, forward.

Counted is what the blocked backend computes on one row without segments; the dense backend, which 'auto' takes for
short rows, computes every pair of a `Softmax` whatever its pattern. Softmax, sorting and masks are left out.
"""

import functools
from collections.abc import Callable

import numpy as np

from efficient_attention.attention.lsh.definition import Layout, bucket_factors
from efficient_attention.attention.mechanism import FAVOR, LSH, Mechanism, Softmax
from efficient_attention.attention.patterns.pattern import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import listing, passes, tile_table
from efficient_attention.attention.softmax.tile_picks import TILE


@functools.lru_cache(maxsize=256)
def attention_products(mechanism: Mechanism, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row of `length` positions, over all `heads` of `width`.

    `Softmax`: two products over every pair of positions in the tiles that the pattern keeps, those pairs included that
    it forbids inside a tile that it keeps in part. `LSH`: in each round the hash, and two products over the pairs of
    each chunk with itself and the chunk before. `FAVOR`: features of queries and keys, sums over keys, sums read by
    queries, and where causal two products over the pairs of each chunk.

    Raises:
        NotImplementedError: a mechanism that is not known here.
    """
    count = COUNTS.get(type(mechanism))
    if count is None:
        raise NotImplementedError(f'no count of the work of {type(mechanism).__name__}')
    return count(mechanism, length, heads, width)


def softmax_products(mechanism: Softmax, length: int, heads: int, width: int) -> int:
    """See `attention_products`."""
    patterns = head_patterns(mechanism.pattern.for_keys(length), heads)
    pairs = sum(kept_pairs(pattern, length, TILE) for pattern in patterns)
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


def lsh_products(mechanism: LSH, length: int, heads: int, width: int) -> int:
    """See `attention_products`; slots that fill up the last chunk count as positions."""
    layout = Layout(mechanism, length, 0.0)
    hashes = length * sum(factor // 2 for factor in bucket_factors(layout.buckets))
    pairs = layout.chunks * layout.size**2 * (1 + layout.before)
    return heads * mechanism.rounds * width * (hashes + 2 * pairs)


def favor_products(mechanism: FAVOR, length: int, heads: int, width: int) -> int:
    """See `attention_products`; the sums of the features alone, without values, are left out."""
    chunk = min(mechanism.chunk, length) if mechanism.causal else 0
    return heads * length * (4 * mechanism.features * width + chunk * (mechanism.features + width))


COUNTS: dict[type, Callable[..., int]] = {Softmax: softmax_products, LSH: lsh_products, FAVOR: favor_products}
